"""Spark's requirements on this machine, Java and some packages, checked without loading any of them."""

import importlib.util
import os
import shutil
from pathlib import Path

from latermq.errors import ConfigError

PACKAGES = ("pyspark", "delta", "deltalake", "pandas", "pyarrow")


def check_requirements() -> None:
    """Raise an error that names a missing requirement and how to install it."""
    check_java()
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not installed", hint="Install latermq[pipeline]")

    from latermq.pipeline.spark.jars import delta_jars

    delta_jars()


def check_java() -> None:
    """Report in a sentence what Spark would report in a page."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME ({home})" if home else "PATH"
        raise ConfigError(f"no Java found in {where}: Spark needs Java 17 or newer", hint="Install a JRE")
