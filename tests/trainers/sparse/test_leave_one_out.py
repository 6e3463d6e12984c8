"""Settings are chosen by sets that were left out: what each training sees, what counts, and what is trained at the end."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from tiny import tiny_beir  # noqa: E402
from tiny_sparse import SMALL, configuration  # noqa: E402

from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.evaluation.results import read  # noqa: E402
from opensearch_neural.models.directory import read_osn_json  # noqa: E402
from trainers.common.config import to_yaml  # noqa: E402
from trainers.common.run_folder import QUESTIONS_FILE, RUN, Trained  # noqa: E402
from trainers.doc2query.question_sets import QuestionSet  # noqa: E402
from trainers.sparse.command import sparse_command  # noqa: E402
from trainers.sparse.leave_one_out import changed, chosen, folder, leaving_out, result, trial_name, trials  # noqa: E402
from trainers.sparse.settings import SparseConfig, SparseObjective, StageSettings  # noqa: E402
from trainers.sparse.trials_table import trials_table  # noqa: E402


@pytest.fixture
def config(tmp_path: Path, backbone: Path) -> SparseConfig:
    sets = [QuestionSet(tiny_beir(tmp_path / name, seed=at)) for at, name in enumerate(("one", "two", "three"))]
    return configuration(backbone, sets[0].path, tmp_path / "model", train=sets)


def measured(value: float, bm25: float = 0.5) -> Trained:
    """Of a student added to BM25: what counts is how far the sum lies above BM25, and not the student alone."""
    return Trained(4, 4, {"nDCG@10": 0.9 - value, "BM25 + sparse nDCG@10": value, "BM25 nDCG@10": bm25})


def test_each_set_is_measured_once_at_the_end_by_a_model_of_the_others(config: SparseConfig) -> None:
    asked: list[SparseConfig] = []

    def train(one: SparseConfig) -> Trained:
        asked.append(one)
        return measured(0.6)

    before = StageSettings(train=[*config.train, QuestionSet(Path("docs.jsonl"), questions="title")])
    config = replace(config, pretraining=before, selection=replace(config.selection, hold_back=0.5))
    trials(config, ["training.steps=6"], train)
    assert len(asked) == 6 and len({one.output for one in asked}) == 6
    for at, one in enumerate(asked):
        (left,) = one.dev
        assert left == config.train[at % 3] and left in one.unseen
        assert left not in one.train and len(one.train) == 2
        assert one.pretraining is not None and left not in one.pretraining.train and len(one.pretraining.train) == 3
        assert one.selection.hold_back is None and one.training.steps == one.training.evaluate_every == (
            4 if at < 3 else 6
        )
        assert one.training.select == one.pretraining.training.select == "last", "a state is chosen by the set left out"
        assert one.cache == config.folder


def test_a_trial_changes_single_fields_or_replaces_a_section(config: SparseConfig) -> None:
    assert changed(config, "training.steps=6") == replace(config, training=replace(config.training, steps=6))
    whole = changed(config, "training={steps: 6}")
    (usual,) = [field.default_factory() for field in fields(SparseConfig) if field.name == "training"]  # type: ignore[misc]
    assert whole.training == replace(usual, steps=6) != replace(config.training, steps=6)
    assert replace(whole, training=config.training) == config
    with pytest.raises(InputError, match=r"--try training\.step"):
        changed(config, "training.step=6")


def test_a_trial_may_regularize_long_documents_alone(config: SparseConfig) -> None:
    assert changed(config, "long documents alone: regularization.least_terms=100").regularization.least_terms == 100


def test_a_trial_may_train_the_table(config: SparseConfig) -> None:
    assert changed(config, "table trained: student.idf=train; student.idf_rate=50").student.idf_rate == 50
    of_each_set = replace(config, student=replace(SMALL, idf="own"))
    with pytest.raises(InputError, match="idf must not be own: set it to train"):
        changed(of_each_set, "student.idf_rate=50")


def test_a_trial_may_mix_the_losses_of_the_sum_and_of_the_student(config: SparseConfig) -> None:
    mixed = changed(config, "half and half: objective.base=bm25; objective.sparse_weight=0.2; objective.base_share=0.5")
    assert mixed.objective == replace(config.objective, base="bm25", sparse_weight=0.2, base_share=0.5)
    with pytest.raises(InputError, match=r"name objective\.base"):
        changed(config, "objective.base_share=0.5")


def test_the_weight_of_the_set_left_out_goes_with_it(config: SparseConfig) -> None:
    before = StageSettings(
        train=[QuestionSet(Path("docs.jsonl"), questions="title"), *config.train[1:]],
        training=replace(config.training, set_weights=[4.0, 5.0, 6.0]),
    )
    training = replace(config.training, set_weights=[1.0, 2.0, 3.0])
    config = replace(config, training=training, pretraining=before)
    left_out = leaving_out(config, config.train[1])
    assert left_out.training.set_weights == [1.0, 3.0]
    assert left_out.pretraining is not None and left_out.pretraining.training.set_weights == [4.0, 6.0]
    power = replace(config, training=replace(training, set_weights=0.5))
    assert leaving_out(power, config.train[1]).training.set_weights == 0.5


def test_what_only_the_set_left_out_reads_of_the_objective_goes_with_it(config: SparseConfig) -> None:
    one, taught, two = config.train[0], replace(config.train[1], teachers=[Path("t")]), config.train[2]
    scaled = SparseObjective(kl=1.0, teacher_scale=30.0)
    config = replace(config, train=[one, taught, two], objective=scaled)
    assert leaving_out(config, one).objective == scaled
    without = leaving_out(config, taught)
    assert without.objective == SparseObjective(kl=1.0)
    assert without.dev == without.unseen == [replace(taught, teachers=[])], "no teacher scores it there"
    asked = replace(scaled, teachers=["lexical"])
    config = replace(config, train=[one, taught], objective=asked)
    assert leaving_out(config, taught).objective == asked
    assert leaving_out(config, one).objective == scaled


def test_no_set_of_the_corpus_that_is_left_out_is_trained_on(config: SparseConfig) -> None:
    """Only sets of the same path were left out, and the others taught the documents that are then measured on."""
    one, others = config.train[0], config.train[1:]
    made = QuestionSet(one.path / "corpus.jsonl", questions="first-sentence", name="made")
    generated = QuestionSet(Path("queries.jsonl"), corpus=one.path)
    whole = replace(config, train=[one, made, generated, *others])
    for left in (one, made, generated):
        assert leaving_out(whole, left).train == others
    assert leaving_out(whole, others[0]).train == [one, made, generated, others[1]]


def test_patience_is_for_what_is_trained_at_the_end(config: SparseConfig) -> None:
    waiting = replace(config.training, patience=2)
    config = replace(config, training=waiting, selection=replace(config.selection, hold_back=0.5))
    assert leaving_out(config, config.train[0]).training.patience is None


def test_the_best_mean_gain_over_bm25_is_taken_and_of_equals_what_is_configured(config: SparseConfig) -> None:
    values = {4: {"one": 0.6, "two": 0.5, "three": 0.5}, 6: {"one": 0.5, "two": 0.6, "three": 0.59}, 8: {}}

    def train(one: SparseConfig) -> Trained:
        return measured(values[one.training.steps].get(one.dev[0].set_name, 0.5))

    tried = trials(config, ["training.steps=6", "training.steps=8; student.revive=0.1"], train)
    assert [trial.mean for trial in tried] == pytest.approx([0.1 / 3, 0.19 / 3, 0.0])
    best = chosen(tried)
    assert best.name == "training.steps=6" and best.config == replace(
        config, training=replace(config.training, steps=6)
    )
    assert tried[2].config.student == replace(config.student, revive=0.1)
    values[6] = values[4]
    assert chosen(trials(config, ["training.steps=6"], train)).name == "as configured"


@pytest.mark.parametrize(
    ("changes", "tries", "words"),
    [
        ({"train": 1}, ["training.steps=6"], "needs several sets"),
        ({"train": "twice"}, ["training.steps=6"], "needs several sets"),
        ({}, ["training.step=6"], "step"),
        ({}, ["train=[{path: one}]"], "must leave out the same sets, and train lacks one, two, three"),
        ({}, ["a: training.steps=6", "a: training.steps=8"], "two lines of the table would have this name"),
        ({}, ["training.steps=6", "training.steps=6"], "two lines of the table would have this name"),
        ({}, ["not trained: training.steps=6"], "two lines of the table would have this name"),
        ({}, ["k: bm25.k1=0.9"], "gains over different BM25s cannot be compared"),
        ({"student": replace(SMALL, queries="network", head="full")}, ["training.steps=6"], "--try measures BM25"),
    ],
)
def test_what_cannot_be_chosen_so_is_refused(config: SparseConfig, changes: dict, tries: list[str], words: str) -> None:
    if changes.get("train") == 1:
        changes = {"train": config.train[:1]}
    elif changes.get("train") == "twice":
        changes = {"train": config.train[:1] * 2}
    with pytest.raises(InputError, match=words):
        trials(replace(config, **changes), tries, lambda one: measured(0.6))


def noted(config: SparseConfig, *states: dict[str, float]) -> None:
    """What a training with `config` notes of the questions of its dev set: each state's gains over a BM25 of 0.5."""
    folder = config.output / RUN
    folder.mkdir(parents=True)
    for gains in states:
        line = {"BM25": dict.fromkeys(gains, 0.5), "BM25 + sparse": {name: 0.5 + own for name, own in gains.items()}}
        with (folder / QUESTIONS_FILE).open("a") as file:
            file.write(json.dumps({config.dev[0].set_name: line}) + "\n")


def test_gains_have_the_intervals_of_their_questions_and_trials_are_compared_question_by_question(
    config: SparseConfig,
) -> None:
    """Each question gains 0.1 more than in the first trial: that is certain, while the gains themselves are not."""
    start = {"a": 0.05, "b": -0.05, "c": -0.06}

    def train(one: SparseConfig) -> Trained:
        more = 0.1 if one.training.steps == 6 else 0.0
        last = {"a": 0.3 + more, "b": -0.3 + more, "c": 0.0 + more}
        noted(one, start, {"a": 0.4, "b": 0.4, "c": 0.4}, last)  # a state on the way, which is not what counts
        trained = measured(0.5 + more)
        trained.measures |= {f"start {name}": value for name, value in measured(0.48).measures.items()}
        trained.measures |= {"active terms": 50.0, "start active terms": 90.0}
        return trained

    rows = {
        (row.variant, row.baseline_variant, row.set): row
        for row in result(trials(config, ["longer: training.steps=6"], train)).rows
        if row.kind == "difference"
    }
    one = rows["longer", "", "one"]
    assert one.value == pytest.approx(0.1) and one.n == 3
    assert (one.low, one.high) == (pytest.approx(-0.2), pytest.approx(0.4)), "the least and the most of three questions"
    whole = rows["longer", "", "mean of 3 sets"]
    assert whole.value == pytest.approx(0.1) and whole.n == 9
    assert -0.2 < whole.low < 0.0 < 0.2 < whole.high < 0.4, "three sets are surer than one"
    for at in ("one", "mean of 3 sets"):
        above = rows["longer", "as configured", at]
        assert (above.value, above.low, above.high) == pytest.approx((0.1, 0.1, 0.1))
        assert above.baseline == "BM25 + sparse"
    assert rows["not trained", "", "one"].high == pytest.approx(0.05), "of the start, not of the last state"
    trained = rows["as configured", "not trained", "one"]
    assert trained.value == pytest.approx(0.02) and (trained.low, trained.high) == pytest.approx((-0.25, 0.25))
    assert ("not trained", "as configured", "one") not in rows


def test_trainings_of_versions_that_kept_no_questions_have_no_intervals_and_it_is_said(
    config: SparseConfig, caplog: pytest.LogCaptureFixture
) -> None:
    def train(one: SparseConfig) -> Trained:
        if one.dev[0].set_name != "two":
            noted(one, {"a": 0.2, "b": 0.0})
        trained = measured(0.6)
        trained.measures["active terms"] = 50.0
        return trained

    tried = trials(config, ["training.steps=6"], train)
    assert "training.steps=6, without two: an earlier version trained it" in caplog.text
    assert str(folder(config)) in caplog.text and "without one: an earlier" not in caplog.text
    rows = {(row.variant, row.baseline_variant, row.set): row for row in result(tried).rows if row.kind == "difference"}
    for rival in ("", "as configured"):
        assert rows["training.steps=6", rival, "one"].low is not None
        for at in ("two", "mean of 3 sets"):
            assert rows["training.steps=6", rival, at].low is None
    assert rows["training.steps=6", "", "mean of 3 sets"].value == pytest.approx(0.1)


def test_a_trial_may_train_on_further_sets_but_not_on_those_of_the_corpus_left_out(config: SparseConfig) -> None:
    asked: list[SparseConfig] = []

    def train(one: SparseConfig) -> Trained:
        asked.append(one)
        return measured(0.6)

    same = ", ".join(f"{{path: {each.path}}}" for each in config.train)
    two = config.train[1].path / "corpus.jsonl"
    text = (
        f"more: train=[{same}, {{path: docs.jsonl, questions: title}}, {{path: {two}, questions: title, name: titles}}]"
    )
    tried = trials(config, [text], train)
    assert [trial.name for trial in tried] == ["as configured", "more"]
    assert [[left.set_name for left in one.dev] for one in asked[3:]] == [["one"], ["two"], ["three"]]
    assert [[each.set_name for each in one.train] for one in asked[3:]] == [
        ["two", "three", "docs", "titles"],
        ["one", "three", "docs"],
        ["one", "two", "docs", "titles"],
    ]
    assert chosen([tried[1]]).config.train[3].questions == "title", "and the further sets are trained on at the end"


def test_a_trial_is_called_by_its_name_or_by_its_settings_without_paths_of_this_machine() -> None:
    assert trial_name("longer: training.steps=6; document_length=64") == "longer"
    assert trial_name("training.steps=6; student={revive: 0.1}") == "training.steps=6; student={revive: 0.1}"
    assert trial_name("train=[{path: /home/me/sets/one}]") == "train=[{path: .../one}]"


def test_the_command_trains_on_all_sets_with_what_was_chosen_and_goes_on(config: SparseConfig, tmp_path: Path) -> None:
    config = replace(config, train=config.train[:2])
    file = tmp_path / "configuration.yaml"
    file.write_text(to_yaml(config))
    arguments = ["--config", str(file), "--try", "training.steps=2"]
    ran = CliRunner().invoke(sparse_command, arguments, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    made = read_osn_json(tmp_path / "model")
    assert made is not None and len(made["training"]["train"]) == 2
    taken = ran.output.split("taken: ")[1].splitlines()[0]
    assert made["training"]["training"]["steps"] == {"as configured": 4, "training.steps=2": 2}[taken]
    again = CliRunner().invoke(sparse_command, arguments, catch_exceptions=False)
    told_again, told_before = (
        [line for line in each.output.splitlines() if "  step " not in line] for each in (again, ran)
    )
    assert told_again == told_before and any(line.startswith("taken: ") for line in told_before)

    written = read(Path(ran.output.split("written: ")[1].splitlines()[0]))
    rows = {(row.variant, row.baseline_variant, row.measure, row.set): row for row in written.rows}
    models, sets = ("not trained", "as configured", "training.steps=2"), ("one", "two", "mean of 2 sets")
    assert [*rows] == [
        (model, rival, measure, at)
        for model in models
        for rival, measure in (("", "nDCG@10"), *((each, "nDCG@10") for each in models[:2]), ("", "active terms"))
        for at in sets
        if not rival or models.index(rival) < models.index(model)
    ]
    assert trials_table(written.rows) in ran.output
    assert (
        rows["not trained", "", "active terms", "one"].value != rows["as configured", "", "active terms", "one"].value
    )
    assert {data.name for data in written.data} == {"one", "two"}

    # Every gain has the interval of its questions, and so has what a trial gains more than the first.
    for (_, rival, measure, at), row in rows.items():
        assert (row.low is None) == (row.high is None) == (measure == "active terms")
        if measure == "nDCG@10":
            assert row.low <= row.value <= row.high
            each = [rows[model, rival, measure, one].n for model in models[1:2] for rival in [""] for one in sets[:2]]
            assert row.n == sum(each) if at == sets[2] else row.n == each[sets.index(at)] > 1
    assert any(row.low < row.high for row in written.rows if row.low is not None and row.high is not None)
    more, own, configured = (
        rows[of, rival, "nDCG@10", "one"].value
        for of, rival in (("training.steps=2", "as configured"), ("training.steps=2", ""), ("as configured", ""))
    )
    assert more == pytest.approx(own - configured)
