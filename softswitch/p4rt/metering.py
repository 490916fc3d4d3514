"""Meter configurations as messages (section "MeterEntry & DirectMeterEntry")."""

from __future__ import annotations

from finsy.proto import p4r

from ringstep.softswitch.meters import MeterConfig
from ringstep.softswitch.p4rt.errors import invalid, unimplemented


def decode_config(where: str, message: p4r.MeterConfig) -> MeterConfig:
    """The rates of a two-rate three-colour meter. Raises INVALID_ARGUMENT."""
    if message.eburst:
        raise invalid(
            f"{where}: eburst {message.eburst}; a two-rate three-colour meter has cir, cburst, "
            "pir and pburst"
        )
    try:
        return MeterConfig(message.cir, message.cburst, message.pir, message.pburst)
    except ValueError as error:
        raise invalid(f"{where}: {error}") from None


def encode_config(config: MeterConfig) -> p4r.MeterConfig:
    """The message of a configuration."""
    return p4r.MeterConfig(
        cir=config.cir, cburst=config.cburst, pir=config.pir, pburst=config.pburst
    )


def refuse_color_counters(where: str) -> None:
    """Raise UNIMPLEMENTED: there are no counters per colour."""
    raise unimplemented(f"{where}: counters per colour; this switch does not count colours")
