// copy.js BOOTSTRAP SOURCE SINK: copies records exactly once until it is killed, with KafkaJS.
// Each transaction has a batch of records and the offsets after them. Every fifth one is aborted and repeated.
import { Kafka, logLevel } from "kafkajs";

const [bootstrap, source, sink] = process.argv.slice(2);
const name = `copy-${sink}`;
const kafka = new Kafka({ brokers: [bootstrap], clientId: "copy", logLevel: logLevel.ERROR });
const producer = kafka.producer({ transactionalId: name, idempotent: true, maxInFlightRequests: 1 });
const consumer = kafka.consumer({ groupId: name, sessionTimeout: 6000, readUncommitted: false });
await producer.connect();
await consumer.connect();
await consumer.subscribe({ topic: source, fromBeginning: true });
let count = 0;

await consumer.run({
  autoCommit: false,
  eachBatchAutoResolve: false,
  eachBatch: async ({ batch, isRunning, isStale, resolveOffset, heartbeat }) => {
    for (let at = 0; at < batch.messages.length; at += 50) {
      if (!isRunning() || isStale()) return;
      const messages = batch.messages.slice(at, at + 50);
      const next = String(BigInt(messages.at(-1).offset) + 1n);
      const copied = messages.map(({ key, value }) => ({ key, value, partition: batch.partition }));
      const partitions = [{ partition: batch.partition, offset: next }];
      const copy = async () => {
        const transaction = await producer.transaction();
        await transaction.send({ topic: sink, messages: copied });
        await transaction.sendOffsets({ consumerGroupId: name, topics: [{ topic: source, partitions }] });
        return transaction;
      };
      if (++count % 5 === 0) await (await copy()).abort();
      await (await copy()).commit();
      resolveOffset(messages.at(-1).offset);
      await heartbeat();
    }
  },
});
consumer.on(consumer.events.CRASH, ({ payload }) => {
  console.error(payload.error);
  process.exit(1);
});
