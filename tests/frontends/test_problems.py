"""Problems of one file become one error."""

from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.problems import Problem, together


def test_the_first_is_the_error_and_the_others_are_its_facts() -> None:
    first = UnsupportedOp("m.onnx: node 'a': no such mode", ["mode 7"], "use mode 6")
    error = together(
        [Problem(first, "a", "Pool (ai.onnx 17)", "Pool"), Problem(InvalidModel("m.onnx: no outputs"))], "m.onnx"
    )
    assert isinstance(error, UnsupportedOp)
    assert error.__cause__ is first
    assert str(error) == (
        "m.onnx: node 'a' (Pool (ai.onnx 17)): no such mode\n  mode 7\n  also: no outputs\n  do: use mode 6"
    )


def test_thousands_are_counted() -> None:
    problems = [Problem(InvalidModel("damaged"), f"n{i}", kind=("Add", "Mul")[i % 2]) for i in range(2001)]
    facts = together(problems, "m").facts
    assert facts[99] == "also: node 'n100': damaged"
    assert facts[100:] == ("and more: Mul (950), Add (950)",)
