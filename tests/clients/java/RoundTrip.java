// RoundTrip BOOTSTRAP TOPIC CODEC COUNT PROTOCOL: the Java client's producer, admin and group consumer against one broker.
// Exits 0 and prints "ok COUNT" when every record came back, once, in order per partition, with its header.
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class RoundTrip {
    static final int PARTITIONS = 3;

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], topic = args[1], codec = args[2];
        int count = Integer.parseInt(args[3]);
        try (Admin admin = Admin.create(with(bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
        }
        produce(bootstrap, topic, codec, count);
        consume(bootstrap, topic, count, args[4]);
        try (Admin admin = Admin.create(with(bootstrap))) {
            long ends = 0;
            for (int partition = 0; partition < PARTITIONS; partition++) {
                var at = new TopicPartition(topic, partition);
                ends += admin.listOffsets(Map.of(at, OffsetSpec.latest())).partitionResult(at).get().offset();
            }
            check(ends == count, "log ends sum to " + ends);
            var committed = admin.listConsumerGroupOffsets("group-" + topic).partitionsToOffsetAndMetadata().get();
            long sum = committed.values().stream().mapToLong(offset -> offset.offset()).sum();
            check(sum == count, "committed offsets sum to " + sum);
        }
        System.out.println("ok " + count);
    }

    static void produce(String bootstrap, String topic, String codec, int count) throws Exception {
        Properties settings = with(bootstrap);
        settings.put("compression.type", codec);
        settings.put("linger.ms", "5");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < count; i++) {
                var record = new ProducerRecord<>(topic, "key-" + i % 17, "value-" + i);
                record.headers().add("number", Integer.toString(i).getBytes());
                producer.send(record, (metadata, failure) -> {
                    if (failure != null) {
                        failure.printStackTrace();
                        System.exit(3);
                    }
                });
            }
            producer.flush();
        }
    }

    static void consume(String bootstrap, String topic, int count, String protocol) {
        Properties settings = with(bootstrap);
        settings.put("group.id", "group-" + topic);
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        Map<String, Integer> lastOfKey = new HashMap<>();
        int seen = 0;
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (seen < count) {
                check(System.nanoTime() < deadline, "only " + seen + " records within a minute");
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    int number = Integer.parseInt(record.value().substring("value-".length()));
                    check(lastOfKey.getOrDefault(record.key(), -1) < number, "out of order at " + number);
                    lastOfKey.put(record.key(), number);
                    String header = new String(record.headers().lastHeader("number").value());
                    check(header.equals(Integer.toString(number)), "header " + header + " of record " + number);
                    seen++;
                }
            }
            check(seen == count, "saw " + seen);
            consumer.commitSync();
        }
    }

    static Properties with(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            System.err.println("failed: " + otherwise);
            System.exit(1);
        }
    }
}
