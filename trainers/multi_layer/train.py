"""`osn train mlr`: several layers' vectors represent a document, the last layer's vector a query.

    osn train mlr --layers last:2 --pooling self-contrastive --set 'train=[{path: squad-mix}]' --output models/mlr
    osn train mlr --layers 2,4,6 --pooling multi-vector --set 'train=[{path: squad-mix}]' --output models/several
    osn train mlr --config multi-layer-representations --output models/mlr      the paper's recipe

"Investigating Multi-layer Representations for Dense Passage Retrieval": similarity is the largest inner product (eq. 2),
and pooling reduces several vectors to one, by self-contrast (eq. 5 to 7), average or scalar mix (eq. 8). Data, negatives,
stages and the loop are those of `trainers.dense`. The paper's baselines, ME-BERT's first token vectors and ColBERT-style
token vectors, use the same poolings.

The model directory is an ordinary dense one, with the last layer only (self-contrastive) or a mix of layers (average,
scalar mix). If documents keep several vectors, its kind is "multi-layer" (`opensearch_neural.models.dense.multi_layer`).

    train_mlr                   the backbone has the layers → the schedule of dense.train.train_dense, with this model
    build                       start → MultiLayerModel, whose documents' tower is a MultiVectorEncoder
    MultiLayerModel.loss_terms  vectors of a batch → terms of the loss (common.losses)
"""

from __future__ import annotations

from opensearch_neural.models.dense.multi_layer import Selection
from opensearch_neural.models.dense.pooling import Pooling
from trainers.common.run_folder import Trained
from trainers.dense.train import rehearse as rehearse_dense
from trainers.dense.train import towers, train_dense
from trainers.encoders.backbones import read_config
from trainers.encoders.tower import read_start
from trainers.multi_layer.multi_layer_model import MultiLayerModel, MultiVectorEncoder
from trainers.multi_layer.settings import MlrConfig, RepresentationSettings, chosen_layers


def train_mlr(config: MlrConfig) -> Trained:
    """The whole schedule: see `train_dense`. Raises as `check_layers` does, before anything is loaded, mined or trained."""
    check_layers(config)
    return train_dense(config, build)


def rehearse(config: MlrConfig) -> Trained:
    """Run all of `config` on the first rows of its data, two steps per stage; nothing is kept."""
    check_layers(config)
    return rehearse_dense(config, build)


def check_layers(config: MlrConfig) -> None:
    """Raises InputError for layers that the backbone lacks; ModelError if it is not a transformer."""
    folder = read_start(config.start).folders["document"]
    selected(config.representation, "mean", int(read_config(folder).num_hidden_layers))


def build(config: MlrConfig) -> MultiLayerModel:
    """The untrained model. Raises as `towers` does, and InputError for layers that the backbone lacks."""
    encoders, tokenizers, settings = towers(config)
    chosen, document = config.representation, encoders["document"]
    selection = selected(chosen, document.pooling, int(document.backbone.config.num_hidden_layers))
    encoders["document"] = MultiVectorEncoder(encoders["document"], selection, chosen.pooling)
    return MultiLayerModel(
        encoders, tokenizers, settings, config.objective, onnx=config.onnx, regularization=chosen.regularization
    )


def selected(chosen: RepresentationSettings, pooling: Pooling, depth: int) -> Selection:
    """The selection of vectors for a backbone with this number of layers. Raises InputError for layers that it lacks."""
    if chosen.source == "layers":
        return Selection(chosen.source, pooling, depth, layers=chosen_layers(chosen.layers, depth))
    return Selection(chosen.source, pooling, depth, count=chosen.count if chosen.source == "first-tokens" else 0)
