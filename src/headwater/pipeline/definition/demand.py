"""Demand: which columns of each node are used above it, from the top down.

Spark's operators keep no others.
"""

from headwater.pipeline.definition.plan_structure import Node, Structure

__all__ = ["THROUGH", "demand", "places"]

THROUGH = {
    "CTERelationDef",
    "CollectMetrics",
    "EventTimeWatermark",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sample",
    "SubqueryAlias",
    "View",
    "WithCTE",
}
"""Nodes that pass on the rows of their only child unchanged."""
ASKS = {
    "Deduplicate": ("keys",),
    "DeduplicateWithinWatermark": ("keys",),
    "Filter": ("condition",),
    "Generate": ("generator",),
    "Join": ("condition",),
}
"""Nodes that pass on columns of their children, and use some themselves."""
LISTS = {"Project": ("projectList", ()), "Aggregate": ("aggregateExpressions", ("groupingExpressions",))}
"""Nodes that list their columns, and the other expressions that they use."""


def demand(structure: Structure) -> list[set[int]]:
    """For each node the ids of its used columns. Subqueries and unknown kinds of nodes use all."""
    nodes = structure.nodes
    wanted: list[set[int]] = [set() for _ in nodes]
    below = {child for node in nodes for child in node.children}
    definitions = structure.definitions()
    for at in range(len(nodes) - 1, -1, -1):
        node = nodes[at]
        if at not in below and node.kind != "CTERelationDef":
            wanted[at].update(node.ids)
        if node.kind == "CTERelationRef":
            child = definitions[node.args["cte"]]
            wanted[child].update(nodes[child].ids[n] for n in places(node, wanted[at]))
        for child in node.children:
            wanted[child].update(_used(structure, node, nodes[child].ids, wanted[at]))
    return wanted


def _used(structure: Structure, node: Node, child: list[int], wanted: set[int]) -> set[int]:
    """The columns of a child that a node uses."""
    if node.kind in THROUGH or node.kind == "Union":
        return {child[n] for n in places(node, wanted)}
    if node.kind in ASKS:
        return (wanted | structure.refs(*(node.args[name] for name in ASKS[node.kind]))) & set(child)
    if node.kind in LISTS:
        listed, also = LISTS[node.kind]
        items = structure.listed(node.args[listed], wanted)
        return structure.refs(*items.values(), *(node.args[name] for name in also))
    if node.kind == "Expand":
        return structure.refs(*(part[n] for part in node.args["projections"] for n in places(node, wanted)))
    return set(child)


def places(node: Node, wanted: set[int]) -> list[int]:
    """The positions of the used columns of a node."""
    return [n for n, number in enumerate(node.ids) if number in wanted]
