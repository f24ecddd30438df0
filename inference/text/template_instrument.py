"""Makes a parsed chat template ask for its budget. Pure Python; engine thread.

Jinja's sandbox sees calls and arithmetic, but not the turns of a loop, its own text, the operator
`~`, and comparisons. So these are changed in the syntax tree, before it is compiled:

    {% for x in y %}…      ->  {% for x in y %}{% do environment.tick() %}…
    own text               ->  {{ environment.tick(8) }}own text
    a ~ b                  ->  environment.joined(a, b)
    a == b                 ->  environment.comparable(a) == b
"""

from jinja2 import Environment, nodes


def instrument(tree: nodes.Template, environment: Environment) -> None:
    """Change the tree in place; the environment must have the three methods."""
    _Instrument(environment).change(tree)


class _Instrument:
    """Changes a parsed template so that what the sandbox does not see asks the environment."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def change(self, node: nodes.Node) -> nodes.Node:
        """Change the tree below the node, and return what stands in its place."""
        for name, value in list(node.iter_fields()):
            if isinstance(value, nodes.Node):
                setattr(node, name, self.change(value))
            elif isinstance(value, list):
                changed = [self.change(v) if isinstance(v, nodes.Node) else v for v in value]
                setattr(node, name, changed)
        if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
            tick = nodes.ExprStmt(self._call("tick", [], node.lineno), lineno=node.lineno)
            tick.set_environment(self._environment)
            node.body.insert(0, tick)
        elif isinstance(node, nodes.Output):
            self._count_own_text(node)
        elif isinstance(node, nodes.Concat):
            return self._call("joined", node.nodes, node.lineno)
        elif isinstance(node, nodes.Compare):
            node.expr = self._call("comparable", [node.expr], node.lineno)
        return node

    def _count_own_text(self, output: nodes.Output) -> None:
        """Put a call that spends the characters of the template's own text before it."""
        size = sum(len(n.data) for n in output.nodes if isinstance(n, nodes.TemplateData))
        if size:
            count = nodes.Const(size, lineno=output.lineno)
            output.nodes.insert(0, self._call("tick", [count], output.lineno))

    def _call(self, name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
        function = nodes.EnvironmentAttribute(name, lineno=lineno)
        call = nodes.Call(function, args, [], None, None, lineno=lineno)
        call.set_environment(self._environment)
        return call
