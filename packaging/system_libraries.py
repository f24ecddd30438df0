"""System libraries that Qt needs on Linux: which ones are missing, and what installs them.

Used by run.py only; standard library only.
"""

import glob
import os
import shutil
import subprocess

# Debian names a library's package after its file; these are the exceptions. Fedora and openSUSE
# find packages by the file itself.
APT_EXCEPTIONS = {
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libz.so.1": "zlib1g",
}
PACMAN_PACKAGES = {
    "libEGL": "libglvnd",
    "libGL": "libglvnd",
    "libGLX": "libglvnd",
    "libOpenGL": "libglvnd",
    "libX11": "libx11",
    "libX11-xcb": "libx11",
    "libdbus-1": "dbus",
    "libfontconfig": "fontconfig",
    "libfreetype": "freetype2",
    "libglib-2.0": "glib2",
    "libgthread-2.0": "glib2",
    "libxcb-cursor": "xcb-util-cursor",
    "libxcb-icccm": "xcb-util-wm",
    "libxcb-image": "xcb-util-image",
    "libxcb-keysyms": "xcb-util-keysyms",
    "libxcb-render-util": "xcb-util-renderutil",
    "libxcb-util": "xcb-util",
    "libxkbcommon": "libxkbcommon",
    "libxkbcommon-x11": "libxkbcommon-x11",
    "libz": "zlib",
    "libzstd": "zstd",
}
INSTALL_COMMANDS = {
    "apt-get": "apt-get update && {sudo}apt-get install -y",
    "dnf": "dnf install",
    "pacman": "pacman -S",
    "zypper": "zypper install",
}


def find_package_manager() -> str | None:
    """The first of the known ones that this system has."""
    return next(filter(shutil.which, INSTALL_COMMANDS), None)


def package_of(library: str, manager: str) -> str:
    """What to ask `manager` for to get a library such as "libEGL.so.1"."""
    stem, _, version = library.partition(".so")
    if manager in ("dnf", "zypper"):
        return f"'{library}()(64bit)'"
    if manager == "pacman":
        default = "wayland" if "wayland" in stem else "libxcb" if "xcb" in stem else stem.lower()
        return PACMAN_PACKAGES.get(stem, default)
    number = version.strip(".")
    separator = "-" if stem[-1].isdigit() else ""
    return APT_EXCEPTIONS.get(library, f"{stem.lower()}{separator}{number}")


def install_command(packages: list[str], manager: str) -> str:
    """The line that installs system packages; with sudo unless we are root."""
    sudo = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
    return sudo + INSTALL_COMMANDS[manager].format(sudo=sudo) + " " + " ".join(packages)


def missing_libraries_message(libraries: list[str], manager: str | None) -> str:
    """Names the libraries and the command that brings them."""
    text = "Qt, which draws the window, needs system libraries that are missing here: "
    text += ", ".join(libraries) + ".\n"
    if manager is None:
        return text + "Install the packages of your system that hold these files."
    packages = list(dict.fromkeys(package_of(library, manager) for library in libraries))
    return text + "Install them with:\n    " + install_command(packages, manager)


def libraries_not_found(ldd_output: str) -> list[str]:
    """The sonames that ldd marks as missing, each once, in order."""
    lines = (line.split() for line in ldd_output.splitlines() if line.endswith("not found"))
    return list(dict.fromkeys(words[0] for words in lines))


def missing_libraries(qt_folder: str, platform: str) -> list[str]:
    """What Qt and its plugin for `platform` would not find; [] if that cannot be told."""
    plugin = os.path.join(qt_folder, "plugins", "platforms", f"libq{platform}.so")
    libraries = [os.path.join(qt_folder, "lib", f"libQt6{n}.so.6") for n in ("Widgets", "DBus")]
    files = [path for path in [*libraries, plugin] if os.path.exists(path)]
    if not files or shutil.which("ldd") is None:
        return []
    environment = {**os.environ, "LC_ALL": "C"}
    command = ["ldd", *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return libraries_not_found(done.stdout)


def libraries_message(folder: str, platforms: list[str]) -> str | None:
    """What to tell a person if Qt in the environment `folder` can start on none of the platforms.

    Returns:
        What is missing for the first one and the command that installs it; None if all is well.
    """
    pattern = os.path.join(folder, "lib", "python*", "site-packages", "PySide6", "Qt")
    for qt_folder in glob.glob(pattern):
        missing = [missing_libraries(qt_folder, platform) for platform in platforms]
        if missing and all(missing):
            return missing_libraries_message(missing[0], find_package_manager())
    return None
