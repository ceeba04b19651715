"""Kafka's command line tools and Java clients, as processes."""

import subprocess

TOOLS = "org.apache.kafka.tools"


def java(classpath: str, *arguments: str, text: str | None = None) -> str:
    """The output of a process that succeeds."""
    done = run_java(classpath, *arguments, text=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_java(classpath: str, *arguments: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = java_command(classpath, *arguments)
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


def java_command(classpath: str, *arguments: str) -> list[str]:
    return [
        "java",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        classpath,
        *arguments,
    ]
