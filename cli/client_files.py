"""Settings of clients in six languages, with the TLS and the login of a profile.

For `tierlog generate clients`. Java's clients read a properties file with references to secrets. The other
clients are made from librdkafka and share its names of settings; their code reads secrets from the variable
or file when it runs.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePath

from tierlog.cli.profiles import Profile
from tierlog.client.properties import properties_text

SASL_PASSWORD = "sasl.password"
_LIBRDKAFKA = {"sasl.mechanism": "sasl.mechanisms"}
_MODULES = {"PLAIN": "plain.PlainLoginModule"}
_PROVIDERS = "org.apache.kafka.common.config.provider"
_SCRAM = "scram.ScramLoginModule"


def client_files(bootstrap: str, profile: Profile | None) -> dict[str, str]:
    """File name -> text, for each language."""
    settings = {"bootstrap.servers": bootstrap}
    settings |= {} if profile is None else profile.client_properties(with_secrets=False)
    reference = "" if profile is None else profile.values.get("password", "")
    files = {"client.properties": _java(settings, reference)}
    for name, write in _LANGUAGES.items():
        files[name] = write({_LIBRDKAFKA.get(key, key): value for key, value in settings.items()}, reference)
    return files


def _java(settings: Mapping[str, str], reference: str) -> str:
    found = {key: value for key, value in settings.items() if not key.startswith(("ssl.", "sasl.user"))}
    if authority := settings.get("ssl.ca.location"):
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if certificate := settings.get("ssl.certificate.location"):  # one file with the key and the certificate
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
    if user := settings.get("sasl.username"):
        kind, _, where = reference.partition(":")
        path = PurePath(where)
        name, provider, value = "directory", "Directory", f"${{directory:{path.parent}:{path.name}}}"
        if kind == "env":
            name, provider, value = "env", "EnvVar", f"${{env:{where}}}"
        module = _MODULES.get(settings.get("sasl.mechanism", ""), _SCRAM)
        found |= {
            "config.providers": name,
            f"config.providers.{name}.class": f"{_PROVIDERS}.{provider}ConfigProvider",
            "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
            f'username={_quoted(user)} password="{value}";',
        }
    return properties_text(found)


def _python(settings: Mapping[str, str], reference: str) -> str:
    kind, _, where = reference.partition(":")
    secret = f"os.environ[{_quoted(where)}]" if kind == "env" else _read_in_python(where)
    lines = [f"        {_quoted(key)}: {_quoted(value)}," for key, value in settings.items()]
    lines += [f"        {_quoted(SASL_PASSWORD)}: {secret},"] if reference else []
    body = "\n".join(lines)
    return f"""# pip install confluent-kafka
import os
from pathlib import Path


def settings() -> dict[str, str]:
    return {{
{body}
    }}


if __name__ == "__main__":
    from confluent_kafka import Producer

    producer = Producer(settings())
    producer.produce("my-topic", b"hello")
    producer.flush()
"""


def _read_in_python(where: str) -> str:
    return f'Path({_quoted(where)}).read_text().removesuffix("\\n")'


def _go(settings: Mapping[str, str], reference: str) -> str:
    kind, _, where = reference.partition(":")
    read = f"os.Getenv({_quoted(where)})" if kind == "env" else f"secret({_quoted(where)})"
    lines = [f"\t\t{_quoted(key)}: {_quoted(value)}," for key, value in settings.items()]
    lines += [f"\t\t{_quoted(SASL_PASSWORD)}: {read},"] if reference else []
    imports = ['\t"os"', '\t"strings"'] if kind == "file" else ['\t"os"'] if reference else []
    function = """
func secret(path string) string {
\ttext, err := os.ReadFile(path)
\tif err != nil {
\t\tpanic(err)
\t}
\treturn strings.TrimSuffix(string(text), "\\n")
}
"""
    head = "\n".join([*imports, "", '\t"github.com/confluentinc/confluent-kafka-go/v2/kafka"'])
    return f"""// go get github.com/confluentinc/confluent-kafka-go/v2/kafka
package main

import (
{head}
)
{function if kind == "file" else ""}
func settings() *kafka.ConfigMap {{
\treturn &kafka.ConfigMap{{
{chr(10).join(lines)}
\t}}
}}

func main() {{
\tproducer, err := kafka.NewProducer(settings())
\tif err != nil {{
\t\tpanic(err)
\t}}
\tdefer producer.Close()
}}
"""


def _rust(settings: Mapping[str, str], reference: str) -> str:
    kind, _, where = reference.partition(":")
    read = (
        f"std::env::var({_quoted(where)})" if kind == "env" else f"std::fs::read_to_string({_quoted(where)})"
    )
    lines = [f"    config.set({_quoted(key)}, {_quoted(value)});" for key, value in settings.items()]
    if reference:
        lines += [
            f'    let secret = {read}.expect("the password");',
            f'    config.set({_quoted(SASL_PASSWORD)}, secret.strip_suffix("\\n").unwrap_or(&secret));',
        ]
    body = "\n".join(lines)
    return f"""// cargo add rdkafka --features ssl,sasl
use rdkafka::config::ClientConfig;
use rdkafka::producer::FutureProducer;

fn settings() -> ClientConfig {{
    let mut config = ClientConfig::new();
{body}
    config
}}

fn main() {{
    let _producer: FutureProducer = settings().create().expect("a producer");
}}
"""


def _javascript(settings: Mapping[str, str], reference: str) -> str:
    kind, _, where = reference.partition(":")
    file = f'require("node:fs").readFileSync({_quoted(where)}, "utf8").replace(/\\n$/, "")'
    read = f"process.env[{_quoted(where)}]" if kind == "env" else file
    lines = [f"  {_quoted(key)}: {_quoted(value)}," for key, value in settings.items()]
    lines += [f"  {_quoted(SASL_PASSWORD)}: {read},"] if reference else []
    body = "\n".join(lines)
    return f"""// npm install @confluentinc/kafka-javascript
const settings = {{
{body}
}};

module.exports = {{ settings }};

if (require.main === module) {{
  const {{ Kafka }} = require("@confluentinc/kafka-javascript").KafkaJS;
  const producer = new Kafka().producer(settings);
  producer
    .connect()
    .then(() => producer.send({{ topic: "my-topic", messages: [{{ value: "hello" }}] }}))
    .finally(() => producer.disconnect());
}}
"""


def _csharp(settings: Mapping[str, str], reference: str) -> str:
    kind, _, where = reference.partition(":")
    file = f"File.ReadAllText({_quoted(where)}).TrimEnd('\\n')"
    read = f"Environment.GetEnvironmentVariable({_quoted(where)})" if kind == "env" else file
    lines = [f"    [{_quoted(key)}] = {_quoted(value)}," for key, value in settings.items()]
    lines += [f"    [{_quoted(SASL_PASSWORD)}] = {read}!,"] if reference else []
    body = "\n".join(lines)
    return f"""// dotnet add package Confluent.Kafka
using Confluent.Kafka;

var settings = new Dictionary<string, string>
{{
{body}
}};

using var producer = new ProducerBuilder<Null, string>(new ProducerConfig(settings)).Build();
await producer.ProduceAsync("my-topic", new Message<Null, string> {{ Value = "hello" }});
"""


def _quoted(text: str) -> str:
    """A literal of all these languages: of printable characters, with quotes and backslashes escaped."""
    return json.dumps(text, ensure_ascii=False)


_LANGUAGES: dict[str, Callable[[Mapping[str, str], str], str]] = {
    "client.py": _python,
    "client.go": _go,
    "client.rs": _rust,
    "client.js": _javascript,
    "Client.cs": _csharp,
}
