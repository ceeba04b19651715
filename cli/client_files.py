"""Settings of clients in six languages and of Kafka Connect, with the TLS and the login of a profile.

For `tierlog generate clients` and `tierlog generate connect`. Java's clients read a properties file with
references to secrets. The other clients are made from librdkafka and share its names of settings; their code
reads secrets from the variable or file when it runs.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from tierlog.cli.profiles import Profile
from tierlog.client.properties import properties_text

SASL_PASSWORD = "sasl.password"
_LIBRDKAFKA = {"sasl.mechanism": "sasl.mechanisms"}
_MODULES = {"PLAIN": "plain.PlainLoginModule"}
_PROVIDERS = "org.apache.kafka.common.config.provider"
_SCRAM = "scram.ScramLoginModule"
_JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
_OF_CONNECTORS = ("producer", "consumer", "admin")
CONNECT_FILE = "connect-distributed.properties"
_CONNECT_HEAD = """\
# A worker of Kafka Connect, from Kafka's own distribution: bin/connect-distributed.sh {file}
# Workers with the same group.id share the connectors. They create the three topics, with the replication
# factor of the brokers (-1). Connectors (JAR files) go below plugin.path.
# With ACLs, the user needs: Read on the group {group}; Read, Write, Create and DescribeConfigs on the topics
# {group}-configs, {group}-offsets and {group}-status; and what the connectors need for their topics.
"""


_OF_PASSWORD_FILE = """\
# The password's file must not end with a line break: Kafka's DirectoryConfigProvider keeps it, and Java then
# cannot read sasl.jaas.config.
"""


def client_files(bootstrap: str, profile: Profile | None) -> dict[str, str]:
    """File name -> text, for each language."""
    settings, reference = _login(bootstrap, profile)
    files = {"client.properties": _password_note(reference) + properties_text(_java(settings, reference))}
    by_librdkafka = {_LIBRDKAFKA.get(key, key): value for key, value in settings.items()}
    for name, language in _LANGUAGES.items():
        files[name] = language.program(by_librdkafka, reference)
    return files


def connect_files(bootstrap: str, profile: Profile | None, group: str) -> dict[str, str]:
    """File name -> text, for the workers of Kafka Connect that share this group."""
    settings, reference = _login(bootstrap, profile)
    login = _java(settings, reference)
    # A worker passes its own TLS and login neither to its connectors' clients nor to their administration.
    of_clients = {
        key: value for key, value in login.items() if key.startswith(("security.", "sasl.", "ssl."))
    }
    worker = {
        **login,
        "group.id": group,
        **{f"{one}.storage.topic": f"{group}-{one}s" for one in ("config", "offset")},
        "status.storage.topic": f"{group}-status",
        **{f"{one}.storage.replication.factor": "-1" for one in ("config", "offset", "status")},
        "key.converter": _JSON_CONVERTER,
        "value.converter": _JSON_CONVERTER,
        "plugin.path": "/usr/share/java",
        "listeners": "http://127.0.0.1:8083",
        **{f"{one}.{key}": value for one in _OF_CONNECTORS for key, value in of_clients.items()},
    }
    head = _CONNECT_HEAD.format(group=group, file=CONNECT_FILE) + _password_note(reference)
    return {CONNECT_FILE: head + properties_text(worker)}


def _login(bootstrap: str, profile: Profile | None) -> tuple[dict[str, str], str]:
    """Kafka's settings of a client, without the password, and where that is."""
    settings = {"bootstrap.servers": bootstrap}
    if profile is None:
        return settings, ""
    return settings | profile.client_properties(with_secrets=False), profile.values.get("password", "")


def _password_note(reference: str) -> str:
    return _OF_PASSWORD_FILE if reference.startswith("file:") else ""


def _java(settings: Mapping[str, str], reference: str) -> dict[str, str]:
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
    return found


def _python(rows: str, reads: str) -> str:
    return f"""# pip install confluent-kafka
import os
from pathlib import Path


def settings() -> dict[str, str]:
    return {{
{rows}
    }}


if __name__ == "__main__":
    from confluent_kafka import Producer

    def delivered(error, message) -> None:
        print(error or f"{{message.topic()}}, partition {{message.partition()}}, offset {{message.offset()}}")

    producer = Producer(settings())
    producer.produce("my-topic", b"hello", on_delivery=delivered)
    if producer.flush(30):
        raise SystemExit("no broker has acknowledged the record within 30 s")
"""


def _go(rows: str, reads: str) -> str:
    function = """
func secret(path string) string {
\ttext, err := os.ReadFile(path)
\tif err != nil {
\t\tpanic(err)
\t}
\treturn strings.TrimSuffix(string(text), "\\n")
}
"""
    imports = {"env": '\t"os"\n', "file": '\t"os"\n\t"strings"\n'}.get(reads, "")
    send = """
\ttopic := "my-topic"
\tdelivered := make(chan kafka.Event, 1)
\trecord := &kafka.Message{
\t\tTopicPartition: kafka.TopicPartition{Topic: &topic, Partition: kafka.PartitionAny},
\t\tValue:          []byte("hello"),
\t}
\tif err := producer.Produce(record, delivered); err != nil {
\t\tpanic(err)
\t}
\tsent := (<-delivered).(*kafka.Message).TopicPartition
\tif sent.Error != nil {
\t\tpanic(sent.Error)
\t}
\tfmt.Printf("%s, partition %d, offset %v\\n", topic, sent.Partition, sent.Offset)"""
    return f"""// go mod init client; go get github.com/confluentinc/confluent-kafka-go/v2/kafka
package main

import (
\t"fmt"
{imports}
\t"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)
{function if reads == "file" else ""}
func settings() *kafka.ConfigMap {{
\treturn &kafka.ConfigMap{{
{rows}
\t}}
}}

func main() {{
\tproducer, err := kafka.NewProducer(settings())
\tif err != nil {{
\t\tpanic(err)
\t}}
\tdefer producer.Close()
{send}
}}
"""


def _rust(rows: str, reads: str) -> str:
    return f"""// cargo add rdkafka --features ssl
use rdkafka::config::ClientConfig;
use rdkafka::producer::FutureProducer;

fn settings() -> ClientConfig {{
    let mut config = ClientConfig::new();
{rows}
    config
}}

fn main() {{
    let _producer: FutureProducer = settings().create().expect("a producer");
}}
"""


def _javascript(rows: str, reads: str) -> str:
    return f"""// npm install @confluentinc/kafka-javascript
const settings = {{
{rows}
}};

module.exports = {{ settings }};

if (require.main === module) {{
  const {{ Kafka }} = require("@confluentinc/kafka-javascript").KafkaJS;
  const producer = new Kafka().producer(settings);
  producer
    .connect()
    .then(() => producer.send({{ topic: "my-topic", messages: [{{ value: "hello" }}] }}))
    .then(([sent]) =>
      console.log(`${{sent.topicName}}, partition ${{sent.partition}}, offset ${{sent.baseOffset}}`))
    .finally(() => producer.disconnect());
}}
"""


def _csharp(rows: str, reads: str) -> str:
    return f"""// dotnet add package Confluent.Kafka
using Confluent.Kafka;

var settings = new Dictionary<string, string>
{{
{rows}
}};

using var producer = new ProducerBuilder<Null, string>(new ProducerConfig(settings)).Build();
await producer.ProduceAsync("my-topic", new Message<Null, string> {{ Value = "hello" }});
"""


def _quoted(text: str) -> str:
    """A literal of all these languages: of printable characters, with quotes and backslashes escaped."""
    return json.dumps(text, ensure_ascii=False)


class _Language(NamedTuple):
    """`row`: a setting, of its name and value. `env`, `file`: expressions that read the password, of the name
    of the variable or file. `write(rows, reads)`: the program; `reads`: "env", "file", or "" without a
    login."""

    row: str
    env: str
    file: str
    write: Callable[[str, str], str]

    def program(self, settings: Mapping[str, str], reference: str) -> str:
        reads, _, where = reference.partition(":")
        rows = [self.row % (_quoted(key), _quoted(value)) for key, value in settings.items()]
        if reference:
            secret = (self.env if reads == "env" else self.file) % _quoted(where)
            rows.append(self.row % (_quoted(SASL_PASSWORD), secret))
        return self.write("\n".join(rows), reads)


_LANGUAGES = {
    "client.py": _Language(
        "        %s: %s,", "os.environ[%s]", 'Path(%s).read_text().removesuffix("\\n")', _python
    ),
    "client.go": _Language("\t\t%s: %s,", "os.Getenv(%s)", "secret(%s)", _go),
    "client.rs": _Language(
        "    config.set(%s, %s);",
        'std::env::var(%s).expect("the password")',
        "std::fs::read_to_string(%s).expect(\"the password\").trim_end_matches('\\n')",
        _rust,
    ),
    "client.js": _Language(
        "  %s: %s,",
        "process.env[%s]",
        'require("node:fs").readFileSync(%s, "utf8").replace(/\\n$/, "")',
        _javascript,
    ),
    "Client.cs": _Language(
        "    [%s] = %s,",
        "Environment.GetEnvironmentVariable(%s)!",
        "File.ReadAllText(%s).TrimEnd('\\n')",
        _csharp,
    ),
}
