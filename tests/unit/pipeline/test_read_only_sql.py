"""`pipeline sql` reads timers and does nothing else, as Spark itself understands what it is asked."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

TABLES = ("pending", "timeline")
READING = {
    "SELECT * FROM pending": {"pending"},
    "SELECT topic, date_trunc('hour', due) AS hour, count(*) FROM Pending GROUP BY 1, 2 HAVING true": {"pending"},
    "SELECT * FROM timeline ORDER BY due_ms DESC LIMIT 5 OFFSET 2": {"timeline"},
    "WITH a AS (SELECT id FROM pending) SELECT * FROM a x JOIN timeline y USING (id) WHERE id IN (SELECT id FROM a)": {
        "pending", "timeline",
    },
    "SELECT id, row_number() OVER w FROM pending WINDOW w AS (PARTITION BY topic ORDER BY due)": {"pending"},
    "SELECT * FROM pending LATERAL VIEW explode(split(keys, ' ')) e AS word": {"pending"},
    "SELECT 1 UNION ALL SELECT * FROM VALUES (2), (3) EXCEPT SELECT id FROM range(9)": set(),
    "SELECT * FROM pending PIVOT (count(*) FOR tags IN ('a', 'b'))": {"pending"},
    "SELECT DISTINCT topic FROM pending TABLESAMPLE (10 PERCENT)": {"pending"},
    "SELECT 'DROP TABLE timeline' AS pending": set(),
    "SELECT * FROM pending QUALIFY row_number() OVER (PARTITION BY topic ORDER BY due_ms) = 1 LIMIT ALL": {"pending"},
    "SELECT * FROM variant_explode(parse_json('[1, 2]'))": set(),
    "SELECT from_xml('<a><b>1</b></a>', 'b INT'), schema_of_xml('<a><b>1</b></a>')": set(),
    "SELECT transform(array(1), x -> x + 1), count(*) FILTER (WHERE due_ms > 1) FROM pending GROUP BY ROLLUP (topic)": {
        "pending",
    },
}  # fmt: skip
REFUSED = {
    "INSERT INTO pending VALUES (1)": "InsertIntoStatement",
    "WITH a AS (SELECT 1) INSERT INTO timeline SELECT * FROM a": "InsertIntoStatement",
    "FROM pending INSERT INTO timeline SELECT 1 INSERT INTO timeline SELECT 2": "InsertIntoStatement",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1": "InsertIntoDir",
    "MERGE INTO timeline USING pending ON true WHEN MATCHED THEN DELETE": "MergeIntoTable",
    "DELETE FROM timeline": "DeleteFromTable",
    "UPDATE timeline SET due_ms = 1": "UpdateTable",
    "CREATE TABLE a AS SELECT 1": "CreateTableAsSelect",
    "CREATE TEMPORARY VIEW a AS SELECT 1": "CreateView",
    "CREATE FUNCTION f AS 'a.B' USING JAR '/x.jar'": "CreateFunction",
    "DROP TABLE timeline": "DropTable",
    "ALTER TABLE timeline ADD COLUMN x INT": "AddColumns",
    "TRUNCATE TABLE timeline": "TruncateTable",
    "CACHE TABLE a AS SELECT 1": "CacheTableAsSelect",
    "SET spark.sql.shuffle.partitions = 1": "SetCommand",
    "ADD JAR '/x.jar'": "AddJars",
    "LOAD DATA INPATH '/x' INTO TABLE timeline": "LoadData",
    "CALL x()": "Call",
    "OPTIMIZE delta.`/x`": "OptimizeTable",
    "VACUUM delta.`/x`": "Vacuum",
    "BEGIN DROP TABLE timeline; END": "CompoundBody",
    "EXECUTE IMMEDIATE 'DROP TABLE timeline'": "ExecuteImmediate",
    "EXPLAIN SELECT 1": "Explain",
    "SELECT TRANSFORM(topic) USING 'sh' FROM pending": "ScriptTransformation",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')": "function reflect",
    "SELECT builtin.java_method('java.lang.System', 'getenv', 'HOME')": "function builtin.java_method",
    "SELECT 1 WHERE (SELECT try_reflect('java.lang.System', 'getenv', 'HOME')) = 'x'": "function try_reflect",
    "WITH a AS (SELECT Reflect('java.lang.System', 'getenv', 'HOME')) SELECT * FROM a": "function Reflect",
    "SELECT * FROM VALUES (reflect('java.lang.System', 'getenv', 'HOME'))": "function reflect",
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'getenv', 'HOME')": "functions with computed names",
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"file:///x.dtd\"><a>&x;</a>', 'a')": "function xpath_string",
    "SELECT * FROM pending WHERE builtin.XPath_Boolean(tags, 'a')": "function builtin.XPath_Boolean",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/x'))": "function from_xml must not have",
    "SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '/x'))": "function schema_of_xml must not have",
    "SELECT upper(builtin.Input_File_Name()) FROM timeline": "would reveal where the timeline is stored",
    "SELECT 1 WHERE (SELECT max(input_file_name()) FROM pending) > ''": "would reveal where the timeline is stored",
    "SELECT * FROM timeline VERSION AS OF 3": "it cannot select a version",
    "SELECT own_function(1)": "own_function is not a built-in function",
    "SELECT * FROM csv.`/etc/passwd`": "no table csv./etc/passwd",
    "SELECT * FROM pending WHERE topic IN (SELECT value FROM text.`/etc/hostname`)": "no table text./etc/hostname",
    "SELECT * FROM IDENTIFIER('parquet.`/x`')": "no table parquet./x",
    "SELECT * FROM IDENTIFIER('tex' || 't.`/x`')": "PlanWithUnresolvedIdentifier",
    "SELECT * FROM delta.`/x`": "no table delta./x",
    "SELECT * FROM table_changes_by_path('/x', 0)": "table function table_changes_by_path",
    "WITH `csv./etc/passwd` AS (SELECT 1) SELECT * FROM csv.`/etc/passwd`": "no table csv./etc/passwd",
    "SELECT * FROM (SELECT 1) AS other JOIN other": "no table other",
    "SELECT * FROM somebodys.table": "no table somebodys.table",
}


@pytest.mark.parametrize("query", READING)
def test_a_query_over_the_timers_is_accepted(spark: "SparkSession", query: str) -> None:
    from latermq.pipeline.query.read_only_sql import check_query

    assert check_query(spark, query, TABLES) == READING[query]


@pytest.mark.parametrize("query", REFUSED)
def test_what_does_more_than_read_is_refused_in_a_line(spark: "SparkSession", query: str) -> None:
    from latermq.pipeline.query.read_only_sql import check_query

    with pytest.raises(ConfigError) as caught:
        check_query(spark, query, TABLES)
    assert REFUSED[query] in caught.value.message
    assert "only reading the tables pending and timeline is allowed" in caught.value.message
    assert "\n" not in caught.value.remark


def test_a_query_cannot_read_the_environment(spark: "SparkSession") -> None:
    from latermq.pipeline.query.read_only_sql import check_expression
    from latermq.pipeline.query.sql import run_query

    asked = "SELECT '${system:user.dir}', '${env:PATH}', '${spark.driver.memory}'"
    found, _ = run_query(spark, asked)
    assert list(found.collect()[0]) == ["${system:user.dir}", "${env:PATH}", "${spark.driver.memory}"]
    # In a session of somebody's own, which substitutes unless it is told not to.
    spark.conf.set("spark.sql.variable.substitute", "true")
    try:
        with pytest.raises(ConfigError, match="an environment variable"):
            run_query(spark, asked)
        with pytest.raises(ConfigError, match="an environment variable"):
            check_expression(spark, "topic = '${env:PATH}'")
    finally:
        spark.conf.set("spark.sql.variable.substitute", "false")


@pytest.mark.parametrize("column", ["_metadata", "t._metadata.file_path", "`_METADATA`.*", "t._metadata.*"])
def test_a_query_is_not_told_where_the_timeline_is_stored(spark: "SparkSession", tmp_path: Path, column: str) -> None:
    """Its URI may hold credentials. Spark's hidden column is hidden behind a view, which no check of ours holds up."""
    from latermq.pipeline.query.sql import run_query
    from latermq.pipeline.timeline.root import open_root
    from latermq.pipeline.timeline.timeline import create_timeline

    create_timeline(spark, open_root(str(tmp_path)))
    with pytest.raises(ConfigError, match="Spark rejects the SQL") as caught:
        run_query(spark, f"SELECT {column} FROM timeline t", str(tmp_path))
    assert str(tmp_path) not in caught.value.remark


def test_rows_that_are_scheduled_may_tell_the_file_they_come_from(spark: "SparkSession") -> None:
    from latermq.pipeline.query.read_only_sql import check_expression

    check_expression(spark, "concat(input_file_name(), id)")


def test_a_function_that_was_registered_is_not_called(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.pipeline.query.sql import run_query

    called = tmp_path / "called"
    spark.udf.register("own_function", lambda: called.touch())
    with pytest.raises(ConfigError, match="own_function is not a built-in function"):
        run_query(spark, "SELECT own_function()", str(tmp_path))
    assert not called.exists()


def test_nothing_is_written_before_it_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.pipeline.query.sql import run_query

    with pytest.raises(ConfigError):
        run_query(spark, f"INSERT OVERWRITE DIRECTORY '{tmp_path}/out' USING csv SELECT 1", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_predicate_calls_no_method_and_reads_no_file(spark: "SparkSession") -> None:
    from latermq.pipeline.bulk.bulk import matching_rows

    waiting = spark.sql("SELECT 'a' AS topic, 1 AS due_ms, X'00' AS record")
    assert matching_rows(waiting, "topic = 'a' AND due_ms BETWEEN 0 AND 5").count() == 1
    for predicate in (
        "reflect('java.lang.System', 'exit', 1) = ''",
        "topic IN (SELECT value FROM text.`/etc/hostname`)",
    ):
        with pytest.raises(ConfigError, match="only reading the tables"):
            matching_rows(waiting, predicate)


def test_a_deep_expression_is_looked_at_without_recursion(spark: "SparkSession") -> None:
    from latermq.pipeline.query.read_only_sql import check_query

    assert check_query(spark, f"SELECT {' + '.join(['1'] * 300)}", TABLES) == set()
