"""This machine's CPU, read from the files of /proc and /sys."""

from __future__ import annotations

from functools import cache

# What Linux prints of a processor that is not the same for all of one kind, or not at all times
_VOLATILE = (
    *("processor", "physical id", "siblings", "core id", "cpu cores", "apicid"),
    *("cpu MHz", "bogomips", "BogoMIPS"),
)


def read(path: str) -> str | None:
    """Return the text of one of the system's small files; None where there is none."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


@cache
def host_flags() -> frozenset[str]:
    """Return the CPU's flags as Linux prints them."""
    try:
        with open("/proc/cpuinfo") as lines:
            found = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    except OSError:
        return frozenset()
    return frozenset(found.split(":", 1)[1].split())


@cache
def host_cpu() -> str:
    """Return what Linux prints of the first processor that tells its kind; empty where it prints nothing."""
    lines = (read("/proc/cpuinfo") or "").partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if not line.removeprefix("initial ").startswith(_VOLATILE))


@cache
def host_cache_bytes() -> int:
    """Return the bytes of the first core's second-level cache; 0 where they are not known."""
    text = read("/sys/devices/system/cpu/cpu0/cache/index2/size") or ""
    units = {"K": 1 << 10, "M": 1 << 20}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    return int(number) * unit if number.isdigit() else 0
