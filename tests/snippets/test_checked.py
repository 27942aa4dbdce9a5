"""Every block parses, what isn't run too, and every command and option that documents name is there."""

from dataclasses import replace
from pathlib import Path

import pytest
from sluice_spark.errors import InvalidOption
from sluice_spark.options import parse_options

from sluice.errors import BadConfiguration
from tests.snippets.checks import command_faults, faults, sluice_fault, unset_variables
from tests.snippets.documents import (
    CHECKED,
    DOCUMENTS,
    FILE,
    MARKS,
    READ_AS,
    ROOT,
    SPARK,
    Block,
    Command,
    blocks,
    commands,
    inline_commands,
    is_shell,
    next_lines,
    shell_commands,
)
from tests.snippets.fragments import read_fragment, sources
from tests.snippets.run import is_shown

ALL = [block for document in DOCUMENTS for block in blocks(document)]


@pytest.mark.parametrize("block", ALL, ids=lambda block: block.place)
def test_every_block_parses_and_names_what_is_there(block: Block) -> None:
    found = faults(block)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_commands_within_sentences_are_there(document: Path) -> None:
    found = {
        command.place: fault
        for command in inline_commands(document)
        if "|" not in command.text and is_shell(command.text)
        if (fault := sluice_fault(command.text.split()[1:], is_whole=False))
    }
    assert not found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_commands_use_only_variables_that_their_terminal_has(document: Path) -> None:
    assert unset_variables(command for block in blocks(document) for command in shell_commands(block)) == []


def test_another_terminal_has_no_variables_of_the_first() -> None:
    first, other = (
        Command(place=place, text=text, elsewhere=place == "b") for place, text in [("a", "x=1"), ("b", "echo $x")]
    )
    assert unset_variables([first, other]) == ["b: x"]
    assert unset_variables([first, replace(other, elsewhere=False)]) == []


def test_what_the_demo_says_to_try_next_is_there() -> None:
    found = [fault for command in next_lines() for fault in command_faults(command)]
    assert not found


@pytest.mark.parametrize("block", [block for block in ALL if block.mark == READ_AS], ids=lambda block: block.place)
def test_a_part_of_a_configuration_is_read_by_what_reads_it(block: Block) -> None:
    read_fragment(block)


def test_spark_takes_the_options_that_programs_give_its_source() -> None:
    found = [options for block in ALL if block.language == "python" for options in sources(block.text) if options]
    assert len(found) >= 5
    for options in found:
        parse_options(options)


def test_one_that_spark_doesnt_take_is_a_fault() -> None:
    [options] = sources('a = spark.readStream.format("sqs").option("queueUri", "https://a/1/b").load().select("c")')
    with pytest.raises(InvalidOption, match="queueUri"):
        parse_options(options)


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("as cdk.json sluice.splitting.queues[]", '{"queue_id": 7}'),
        ("as cdk.json sluice.splitting.queues[].consumers[]", '{"type": "carrier pigeon"}'),
        ("as cdk.json sluice.splitting", '"policies": [{"mode": "steal"}]'),
        ("as a filter file", '{"split_queues": {"orders": {"message_filter": {"user": "("}}}}'),
        ("as a topology", '{"sites": {"a": {"at": 1}}}'),
    ],
)
def test_one_that_cant_be_read_is_a_fault(rest: str, text: str) -> None:
    block = Block(document=ROOT / "README.md", line=1, language="json", text=text, mark=READ_AS, rest=rest)
    with pytest.raises(BadConfiguration):
        read_fragment(block)


def test_marks_are_known_and_say_what_they_have_to() -> None:
    for block in ALL:
        assert not block.mark or block.mark in MARKS, block.place
        assert (block.mark in {CHECKED, FILE, READ_AS, SPARK}) == bool(block.rest), f"{block.place}: {block.rest!r}"


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("sluice local up --harsh", ""),
        ("sluice local up --hush", "--hush"),
        ("sluice local sideways", "no command"),
        ("sluice local", "no further"),
        ("sluice publish a b c d e f g h", "no place"),
        ("sluice route add HERE", "lacks"),
        ("AWS_REGION=x sluice status --nothing", "--nothing"),
        ("for a in b; do sluice stat $a; done", "stat"),
        ("sluice dlq list | sluice nothing", "nothing"),
        ("sluice split run --filter 'a:b=c' -- sluice pipeline nothing", "nothing"),
        ("make nothing-of-the-kind", "nothing-of-the-kind"),
        ("aws sqs create-queue --queue-name a", ""),
        ("aws sqs create-queue --queue-nom a", "queue-nom"),
        ("aws sqs make-queue", "make-queue"),
        ("python -m sluice.nothing", "sluice.nothing"),
        ("sluise status", "sluise"),
        ("sluice status 'and", "parse"),
        ("sluice status  # sluice nothing", ""),
    ],
)
def test_what_is_wrong_with_a_command_is_named(command: str, fault: str) -> None:
    found = command_faults(Command(place="here", text=command))
    assert (fault in found[0]) if fault else not found


def block_of(text: str, language: str = "sh") -> Block:
    return Block(document=ROOT / "README.md", line=1, language=language, text=text)


@pytest.mark.parametrize(
    ("language", "text"),
    [("json", "{"), ("yaml", "a: [b"), ("python", "a ="), ("sql", "SELECT 'a"), ("", "x"), ("text?", "x")],
)
def test_a_block_that_doesnt_parse_is_a_fault(language: str, text: str) -> None:
    assert faults(block_of(text, language))


def test_a_command_goes_on_as_the_shell_has_it() -> None:
    text = "for a in b; do\n  echo $a\ndone\n# nothing\nls \\\n  -l\ncat <<'E'\nx\nE\n"
    found = [command.text for command in commands(block_of(text))]
    assert found == ["for a in b; do\n  echo $a\ndone", "ls \\\n  -l", "cat <<'E'\nx\nE"]


def test_output_belongs_to_the_command_before_it() -> None:
    first, second = commands(block_of("$ echo a\na\n$ true\n", "console"))
    assert (first.text, first.shown, second.shown) == ("echo a", ("a",), ())


def test_what_is_for_another_terminal_says_so() -> None:
    elsewhere, here = commands(block_of("sleep 9   # in one terminal\necho in one terminal\n"))
    assert (elsewhere.elsewhere, here.elsewhere) == (True, False)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (["a … b"], "a 12 b\n"),
        (["a", "…", "z"], "a\nb\nc\nz\n"),
        (["…"], ""),
        (["id=…,x"], "id=17,x\n"),
        (["a  b"], "a b   \n"),
        ([], "\n"),
    ],
)
def test_shown_output_is_recognised(shown: list[str], said: str) -> None:
    assert is_shown(shown, said)


@pytest.mark.parametrize(
    ("shown", "said"), [(["a"], "b\n"), ([], "a\n"), (["a…"], "b\n"), (["a", "…", "z"], "a\nz\ny\n")]
)
def test_other_output_is_not(shown: list[str], said: str) -> None:
    assert not is_shown(shown, said)
