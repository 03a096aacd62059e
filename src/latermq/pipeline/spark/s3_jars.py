"""The jars with which Spark reaches S3: Hadoop's S3A, the parts of AWS's SDK that it uses, and a log store for Delta.

Only timelines on S3 need them. `python -m latermq.pipeline.spark.s3_jars` fetches them into the environment it runs in.
The log store is compiled there, by the Java compiler that is part of Spark.
"""

import contextlib
import hashlib
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from latermq.errors import ConfigError, StoreError
from latermq.pipeline.spark.jars import checked_jars, delta_jars, fetch_jars, jar_folder, run_fetch

_COMMAND = "latermq.pipeline.spark.s3_jars"
# The Hadoop that Spark contains, and the SDK that this Hadoop was built with. Hadoop asks for all of the SDK in one jar
# of 600 MB. These are the parts of it that S3A uses, 13 MB. Spark has the libraries that they need.
_HADOOP, _SDK = "3.5.0", "2.35.4"
_SDK_CHECKSUMS = {
    "annotations": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
    "apache-client": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
    "arns": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
    "auth": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
    "aws-core": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
    "aws-query-protocol": "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
    "aws-xml-protocol": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
    "checksums": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
    "checksums-spi": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
    "crt-core": "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
    "endpoints-spi": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
    "http-auth": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
    "http-auth-aws": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
    "http-auth-aws-eventstream": "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
    "http-auth-spi": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
    "http-client-spi": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
    "identity-spi": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
    "json-utils": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
    "metrics-spi": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
    "netty-nio-client": "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
    "profiles": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
    "protocol-core": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
    "regions": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
    "retries": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
    "retries-spi": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
    "s3": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
    "s3-transfer-manager": "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
    "sdk-core": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
    "sts": "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
    "third-party-jackson-core": "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
    "utils": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
    "utils-lite": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
}
CHECKSUMS = {
    f"hadoop-aws-{_HADOOP}.jar": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
    "analyticsaccelerator-s3-1.3.1.jar": "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
    "eventstream-1.0.1.jar": "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
    "reactive-streams-1.0.4.jar": "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
    **{f"{part}-{_SDK}.jar": checksum for part, checksum in _SDK_CHECKSUMS.items()},
}
PACKAGES = {
    f"hadoop-aws-{_HADOOP}.jar": f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    "analyticsaccelerator-s3-1.3.1.jar": "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    "eventstream-1.0.1.jar": "software.amazon.eventstream:eventstream:1.0.1",
    "reactive-streams-1.0.4.jar": "org.reactivestreams:reactive-streams:1.0.4",
    **{f"{part}-{_SDK}.jar": f"software.amazon.awssdk:{part}:{_SDK}" for part in _SDK_CHECKSUMS},
}
LOG_STORE_CLASS = "latermq.ConditionalLogStore"
_SOURCE = Path(__file__).with_name("log_store") / "ConditionalLogStore.java"


def s3_jars() -> list[Path]:
    """The jars to start Spark with for a timeline on S3, each verified. All take 20 ms."""
    jars = checked_jars(PACKAGES, CHECKSUMS, command=_COMMAND)
    log_store = _log_store_jar()
    if not log_store.is_file():
        # Another release of this package compiled its own.
        checked_jars([log_store.name], {}, command=_COMMAND)
    return [*jars, log_store]


def _log_store_jar() -> Path:
    """The jar of the log store, named after its source: another release of the source is another jar."""
    return jar_folder() / f"latermq-log-store-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}.jar"


def _compile_log_store(gateway: Any) -> None:
    """Compile the log store against Delta's and Hadoop's jars, with Janino, which Spark uses for its queries."""
    import pyspark

    jvm = gateway.jvm
    [hadoop] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    with tempfile.TemporaryDirectory() as scratch:
        compiler = jvm.org.codehaus.janino.CompilerFactory().newCompiler()
        compiler.setClassPath(_java_files(gateway, [hadoop, *delta_jars()]))
        compiler.setDestinationDirectory(jvm.java.io.File(scratch), False)
        if not compiler.compile(_java_files(gateway, [_SOURCE])):
            raise StoreError(f"{_SOURCE.name} cannot be compiled", hint="Install the pyspark of pyproject.toml")
        target = _log_store_jar()
        partial = target.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w") as jar:
            for found in sorted(Path(scratch).rglob("*.class")):
                jar.write(found, found.relative_to(scratch))
        partial.replace(target)


def _java_files(gateway: Any, paths: list[Path]) -> Any:
    files = gateway.new_array(gateway.jvm.java.io.File, len(paths))
    for number, path in enumerate(paths):
        files[number] = gateway.jvm.java.io.File(str(path))
    return files


def main() -> None:
    with contextlib.suppress(ConfigError):
        s3_jars()
        return
    run_fetch(lambda: fetch_jars(jar_folder(), PACKAGES, CHECKSUMS, _compile_log_store), "the jars for S3")


if __name__ == "__main__":
    main()
