"""The tree of all commands with the options that many commands share and no function takes: `--profile` and
`--output`.

The shared options are added to the finished tree, and take effect before the command's function runs.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from tierlog.cli.options import known_words

ADDRESSES = {"TIERLOG_BOOTSTRAP", "TIERLOG_ADMIN"}
CONNECTION = ADDRESSES | {"TIERLOG_CLIENT_CONFIG"}
PROFILE_VARIABLE = "TIERLOG_PROFILE"
FORM = "tierlog.output"
"""Key of the context's `meta`."""


def command_tree(app: typer.Typer) -> Any:
    """The root command of the application."""
    root, shared = typer.main.get_command(app), _shared_options()
    for command in _leaves(root):
        if ADDRESSES & set(map(_variable, command.params)):
            command.params.append(shared["profile"])
            command.invoke = _with_profile(command.invoke)
        if "--json" in _names(command) and "--output" not in _names(command):
            command.params.append(shared["form"])
            command.invoke = _with_form(command.invoke)
    return root


def _leaves(command: Any) -> Iterator[Any]:
    """The commands of all groups, without the groups."""
    children = getattr(command, "commands", None)
    if children is None:
        yield command
        return
    for child in children.values():
        yield from _leaves(child)


def _names(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def _variable(parameter: Any) -> str:
    return parameter.envvar if isinstance(parameter.envvar, str) else ""


def _remember_profile(context: typer.Context, value: str | None) -> str | None:
    context.meta[PROFILE_VARIABLE] = value
    return value


def _remember_form(context: typer.Context, value: str | None) -> str | None:
    from tierlog.cli.output import FORMS

    context.meta[FORM] = known_words([value], FORMS, "--output")[0] if value else None
    return value


def _forms(incomplete: str) -> list[str]:
    from tierlog.cli.output import FORMS

    return [form for form in FORMS if form.startswith(incomplete)]


def _profiles(incomplete: str) -> list[str]:
    from tierlog.cli.completions import profiles

    return profiles(incomplete)


def _shared(
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            envvar=PROFILE_VARIABLE,
            metavar="NAME",
            expose_value=False,
            callback=_remember_profile,
            autocompletion=_profiles,
            help="Cluster of this name (`tierlog profile`). Default: the profile in use, unless addresses or "
            "client settings are given.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="table|json|yaml|wide",
            expose_value=False,
            callback=_remember_form,
            autocompletion=_forms,
            help="Form of the result; wide has all columns. Default: table.",
        ),
    ] = None,
) -> None:
    """Declares the options; they are taken from it, and it never runs."""


def _shared_options() -> dict[str, Any]:
    """The options by name."""
    carrier = typer.Typer(add_completion=False)
    carrier.command()(_shared)
    return {option.name: option for option in typer.main.get_command(carrier).params}


def _with_form(invoke: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def invoke_with_form(context: Any) -> Any:
        from tierlog.cli.output import TABLE, use_form

        if use_form(context.meta.get(FORM) or TABLE):
            context.params["as_json"] = True
        return invoke(context)

    return invoke_with_form


def _with_profile(invoke: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def invoke_with_profile(context: Any) -> Any:
        from tierlog.cli.client_config import choose_profile

        choose_profile(typed_profile(context), list(_given(context)))
        return invoke(context)

    return invoke_with_profile


def typed_profile(context: Any) -> str | None:
    """The profile that the command line names."""
    is_typed = _source(context, "profile") == "COMMANDLINE"
    return context.meta.get(PROFILE_VARIABLE) if is_typed else None


def _given(context: Any) -> Iterator[str]:
    """Options and variables of the command that name addresses or client settings."""
    for parameter in context.command.params:
        variable, source = _variable(parameter), _source(context, parameter.name)
        if variable in CONNECTION and context.params.get(parameter.name) is not None:
            if source == "COMMANDLINE":
                yield parameter.opts[0]
            elif source == "ENVIRONMENT":
                yield variable


def _source(context: Any, name: str) -> str:
    source = context.get_parameter_source(name)
    return "" if source is None else str(source.name)
