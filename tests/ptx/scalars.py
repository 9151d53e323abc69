"""The types of PTX, and the C++ types that hold their values."""

BITS = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bsu" for bits in (8, 16, 32, 64)},
    **{"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64},
}
FLOATS = {"f32": "float", "f64": "double"}  # those in which C++ computes
SHORT_FLOATS = ("f16", "bf16", "f16x2", "bf16x2")  # moved and converted, but not computed with
RAW = {1: "bool", 8: "u8", 16: "u16", 32: "u32", 64: "u64"}


def size_of(name: str) -> int:
    """Bytes in memory."""
    return max(BITS[name] // 8, 1)


def held_as(name: str) -> str:
    """The C++ type of a register: floats as such, all else as its bits."""
    return FLOATS.get(name) or RAW[BITS[name]]


def computed_as(name: str) -> str:
    """The C++ type in which instructions of this type compute."""
    return name if name[0] == "s" else held_as(name)


def is_signed(name: str) -> bool:
    return name[0] == "s"
