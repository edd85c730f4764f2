"""View columns: the columns of a view, for readers of its topic."""

from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from headwater.declare.schema import Column

__all__ = ["columns_of"]


def columns_of(rows: StructType) -> tuple[Column, ...]:
    """The columns that a view with such rows publishes, without hidden ones, which begin with ``_``."""
    return tuple(
        Column(field.name, _ddl(field.dataType), required=False)
        for field in rows.fields
        if not field.name.startswith("_")
    )


def _ddl(kind: DataType) -> str:
    """A type in Spark's notation, with the names inside it quoted."""
    if isinstance(kind, StructType):
        inner = (f"`{field.name.replace('`', '``')}`: {_ddl(field.dataType)}" for field in kind.fields)
        return f"STRUCT<{', '.join(inner)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return "TIMESTAMP" if isinstance(kind, TimestampType) else kind.simpleString()
