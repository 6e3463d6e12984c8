"""What is computed in bfloat16, and where: the hardware decides for `auto`, and is warned of where it is named."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from trainers.common import precision  # noqa: E402
from trainers.common.precision import (  # noqa: E402
    Precision,
    computed_in,
    computing_in,
    faster_in_bfloat16,
    flushed_denormals,
)


@pytest.mark.parametrize("fast", [True, False])
def test_the_hardware_decides_what_is_left_to_it(
    fast: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(precision, "faster_in_bfloat16", lambda device: (asked.append(device), fast)[1])
    with caplog.at_level(logging.WARNING):
        assert computed_in("auto", "cpu") == ("bfloat16" if fast else "float32")
        assert computed_in("float32", "cpu") == "float32"
        assert not caplog.messages
        assert computed_in("bfloat16", "cpu") == "bfloat16"
    assert set(asked) == {"cpu"}
    assert [("has no fast bfloat16" in message) for message in caplog.messages] == [True] * (not fast)


@pytest.mark.parametrize(
    ("units", "vendor", "faster"),
    [
        ("_is_amx_tile_supported", "GenuineIntel", True),
        ("_is_avx512_bf16_supported", "AuthenticAMD", True),
        ("_is_avx512_bf16_supported", "", True),
        ("_is_avx512_bf16_supported", "GenuineIntel", False),
    ],
)
def test_a_processor_multiplies_faster_in_bfloat16_with_units_that_are(
    units: str, vendor: str, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_vendor", lambda: vendor)
    for one in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, one, lambda: False)
    assert not faster_in_bfloat16("cpu")
    monkeypatch.setattr(torch.cpu, units, lambda: True)
    assert faster_in_bfloat16("cpu") == faster
    assert faster_in_bfloat16(torch.device("cpu")) == faster


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux names the vendor")
def test_linux_names_the_vendor() -> None:
    listed = Path("/proc/cpuinfo").read_text()
    assert f": {precision._vendor()}\n" in listed or "vendor_id" not in listed


@pytest.mark.parametrize(
    ("said", "fast", "used"), [("auto", True, "bfloat16"), ("auto", False, "float32"), ("float32", True, "float32")]
)
def test_what_is_called_inside_computes_in_the_precision(
    said: Precision, fast: bool, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "faster_in_bfloat16", lambda device: fast)
    layer, norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
    with computing_in(computed_in(said, "cpu"), "cpu"):
        product = layer(torch.ones(1, 4))
        assert product.dtype == getattr(torch, used)
        assert norm(product.float()).dtype == torch.float32
    assert layer.weight.dtype == layer(torch.ones(1, 4)).dtype == torch.float32


def test_denormals_are_zero_inside_and_what_they_were_outside() -> None:
    small = torch.full((1000,), 1e-30)

    def flushed() -> bool:
        return not (small * 1e-10).any()

    assert not flushed()
    with flushed_denormals():
        assert flushed()
        with flushed_denormals():
            pass
        assert flushed(), "what is inside another one leaves it as it was"
    assert not flushed()
