// round_trip.js LOGIN TOPIC GROUP VALUE: produces a record and consumes it in a group, with KafkaJS.
// LOGIN: a file of `Login`. Prints "ok", or the type of the first error. Without VALUE it only consumes.
import { readFileSync } from "node:fs";
import { Kafka, logLevel } from "kafkajs";

const [file, topic, group, value] = process.argv.slice(2);
const login = JSON.parse(readFileSync(file, "utf8"));

const stopAt = (error) => {
  for (let cause = error; cause; cause = cause.cause ?? cause.originalError) {
    error = cause;
  }
  console.log(error.type ?? error.name);
  process.exit(0);
};

const issuedToken = async () => {
  const body = new URLSearchParams({ grant_type: "client_credentials" });
  const response = await fetch(login.token_endpoint, { method: "POST", body });
  return { value: (await response.json()).access_token };
};

const ssl = { ca: [readFileSync(login.ca, "utf8")] };
let sasl;
if (login.mechanism === "OAUTHBEARER") {
  sasl = { mechanism: "oauthbearer", oauthBearerProvider: issuedToken };
} else if (login.mechanism) {
  sasl = { mechanism: login.mechanism.toLowerCase(), username: login.user, password: login.password };
} else {
  ssl.key = ssl.cert = readFileSync(login.certificate, "utf8");
}
const brokers = [login.bootstrap];
const kafka = new Kafka({ brokers, clientId: "round-trip", logLevel: logLevel.NOTHING, ssl, sasl });

setTimeout(() => stopAt(new Error("no record within 30 s")), 30_000).unref();
try {
  if (value) {
    const producer = kafka.producer();
    await producer.connect();
    await producer.send({ topic, messages: [{ value }] });
    await producer.disconnect();
  }
  const consumer = kafka.consumer({ groupId: group });
  consumer.on(consumer.events.CRASH, ({ payload }) => stopAt(payload.error));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => {
      if (message.value.toString() !== value) return;
      console.log("ok");
      process.exit(0);
    },
  });
} catch (error) {
  stopAt(error);
}
