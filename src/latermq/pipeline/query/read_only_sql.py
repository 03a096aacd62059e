"""Read-only SQL over timers: checks the parsed statement before Spark resolves or runs any of it.

The check refuses everything that is not known to be harmless. A plan may contain only the listed nodes, name only the
given tables, and call only Spark's built-in functions. The check reaches all parts of a parsed statement, including
subqueries and CTEs, through Scala's Product interface.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from latermq.pipeline.query.bad_query import BadQuery
from latermq.pipeline.query.sql_mistakes import rejected
from latermq.pipeline.remote.running_driver import driver_of, is_connect_session

_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"
_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"
_NODES = frozenset({
    "Aggregate", "AsOfJoin", "Deduplicate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect",
    "Join", "LateralJoin", "LimitAll", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "PipeOperator",
    "Pivot", "Project", "Repartition", "RepartitionByExpression", "ResolvedInlineTable", "Sample", "Sort",
    "SubqueryAlias", "Union", "Unpivot", "UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable",
    "UnresolvedQualify", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases",
    "UnresolvedTableValuedFunction", "UnresolvedWith", "Window", "WithWindowDefinition",
})  # fmt: skip
# Expressions that call a function by a computed name, or a user-defined function.
_UNKNOWN_FUNCTIONS = frozenset({"ExpressionWithUnresolvedIdentifier", "PythonUDF", "ScalaUDF"})
# These call any method of any class, or open a file or URL by name. The XPath functions open the DTD that a document
# names, and anyone may have written the document.
_CLOSED_FUNCTIONS = frozenset({
    "java_method", "reflect", "try_reflect", "from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf",
    "xpath", "xpath_boolean", "xpath_double", "xpath_float", "xpath_int", "xpath_long", "xpath_number", "xpath_short",
    "xpath_string",
})  # fmt: skip
# These reveal the URI of the tables, which may contain credentials.
_PLACE_FUNCTIONS = frozenset({"input_file_name"})
# Arguments beyond this number are options, and one of the options names a file.
_WITHOUT_OPTIONS = {"from_xml": 2, "schema_of_xml": 1}
_ANY_NUMBER = 1 << 31
# Delta adds others, which read tables by path.
_TABLE_FUNCTIONS = frozenset({
    "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "range",
    "stack", "variant_explode", "variant_explode_outer",
})  # fmt: skip


def check_query(spark: SparkSession, query: str, tables: Collection[str]) -> set[str]:
    """Refuse anything but a query over these tables. Returns the tables that it names."""
    if is_connect_session(spark):  # its parser is in the driver, which runs this same check
        return driver_of(spark).check_query(query, tables)
    _check_text(spark, query)
    plan = _parsed(lambda: _parser(spark).parsePlan(query), query)
    nodes = list(_nodes(spark, plan))
    ctes = [cte for kind, _, node in nodes if kind == "UnresolvedWith" for cte in _each(node.cteRelations().iterator())]
    named = _check(spark, nodes, {*tables, *(str(cte._1()).lower() for cte in ctes)}, own_functions=False)
    return named & set(tables)


def check_expression(spark: SparkSession, text: str) -> None:
    """Refuse an expression that does more than read its row. The expression may call the user's own functions."""
    if is_connect_session(spark):
        driver_of(spark).check_expression(text)
        return
    _check_text(spark, text)
    expression = _parsed(lambda: _parser(spark).parseExpression(text), text)
    _check(spark, _nodes(spark, expression), (), own_functions=True)


def _check_text(spark: SparkSession, text: str) -> None:
    """Refuse text that Spark would substitute before parsing: the environment may hold credentials."""
    if "${" in text and spark.conf.get("spark.sql.variable.substitute") == "true":
        raise _refused("${…} would be replaced by a setting or an environment variable")


def _check(
    spark: SparkSession, nodes: Iterable[tuple[str, bool, Any]], tables: Collection[str], *, own_functions: bool
) -> set[str]:
    named: set[str] = set()
    for kind, is_plan, node in nodes:
        if kind == "RelationTimeTravel":
            raise _refused("it cannot select a version", hint="Use --version N or --as-of TIME to query an old version")
        if is_plan and kind not in _NODES:
            raise _refused(f"{kind} does more than read")
        if kind in _UNKNOWN_FUNCTIONS:
            raise _refused("functions with computed names are not allowed")
        if kind == "UnresolvedRelation":
            name = _dotted(node.multipartIdentifier())
            # In a name of several parts, the first may be a format and the second a path.
            if node.multipartIdentifier().size() != 1 or name.lower() not in tables:
                raise _refused(f"there is no table {name}")
            named.add(name.lower())
        elif kind == "UnresolvedTableValuedFunction":
            name = _dotted(node.name())
            if name.lower() not in _TABLE_FUNCTIONS:
                raise _refused(f"table function {name} is not allowed")
        elif kind == "UnresolvedFunction":
            name = _dotted(node.nameParts())
            last = name.rpartition(".")[2].lower()
            if last in _CLOSED_FUNCTIONS:
                raise _refused(f"function {name} is not allowed")
            if node.arguments().size() > _WITHOUT_OPTIONS.get(last, _ANY_NUMBER):
                raise _refused(f"function {name} must not have options")
            if not own_functions and last in _PLACE_FUNCTIONS:
                raise _refused(f"function {name} would reveal where the timeline is stored")
            if not own_functions and not _is_builtin(spark, name):
                raise _refused(f"{name} is not a built-in function of Spark")
    return named


def _refused(why: str, hint: str = "Write a SELECT over these tables with Spark's built-in functions") -> BadQuery:
    return BadQuery(f"only reading the tables pending and timeline is allowed: {why}", hint=hint)


def _parser(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().sqlParser()


def _parsed(parse: Any, text: str) -> Any:
    try:
        return parse()
    except PySparkException as error:
        raise rejected(error, text) from error


def _is_builtin(spark: SparkSession, name: str) -> bool:
    catalyst = spark.sparkContext._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    return bool(catalyst.analysis.FunctionRegistry.builtin().functionExists(catalyst.FunctionIdentifier(name)))


def _dotted(parts: Any) -> str:
    return ".".join(str(part) for part in _each(parts.iterator()))


def _nodes(spark: SparkSession, root: Any) -> Iterator[tuple[str, bool, Any]]:
    """Every plan and expression in a parsed tree: its class name, whether it is a plan, and the node."""
    jvm = spark.sparkContext._jvm
    loader = root.getClass().getClassLoader()
    tree, plan, product, iterable = (
        jvm.java.lang.Class.forName(name, True, loader)  # type: ignore[union-attr]
        for name in (_TREE, _PLAN, "scala.Product", "scala.collection.Iterable")
    )
    left = [root]
    while left:
        found = left.pop()
        if not isinstance(found, JavaObject):
            continue
        if tree.isInstance(found):
            yield str(found.getClass().getSimpleName()).rstrip("$"), bool(plan.isInstance(found)), found
        if iterable.isInstance(found):
            left.extend(_each(found.iterator()))
        elif product.isInstance(found):
            left.extend(_each(found.productIterator()))


def _each(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()
