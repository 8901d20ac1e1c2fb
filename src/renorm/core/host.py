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
def host_cache_bytes(level: int) -> int:
    """Return the bytes that the first CPU has of a cache of data, an even part of one that several share; 0 where they
    are not known."""
    folder = f"/sys/devices/system/cpu/cpu0/cache/index{level if level > 1 else 0}"
    text, shared = read(f"{folder}/size") or "", read(f"{folder}/shared_cpu_list") or "0"
    units = {"K": 1 << 10, "M": 1 << 20}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    ranges = [part.split("-") for part in shared.split(",")]
    cpus = sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)
    return int(number) * unit // cpus if number.isdigit() else 0
