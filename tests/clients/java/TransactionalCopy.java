// TransactionalCopy BOOTSTRAP SOURCE SINK: copies records exactly once until it is killed, with the Java client.
// Each transaction has a batch of records and the offsets after them. Every fifth one is aborted and repeated.
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionalCopy {
    public static void main(String[] args) {
        String source = args[1], sink = args[2];
        var producer = new KafkaProducer<>(
            with(args[0], Map.of("transactional.id", "copy-" + sink)), new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        var consumer = new KafkaConsumer<>(
            with(args[0], Map.of(
                "group.id", "copy-" + sink, "enable.auto.commit", "false", "auto.offset.reset", "earliest",
                "isolation.level", "read_committed", "session.timeout.ms", "6000", "max.poll.records", "50")),
            new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(source));
        for (int count = 1; ; ) {
            var records = consumer.poll(Duration.ofMillis(200));
            if (records.isEmpty()) continue;
            producer.beginTransaction();
            Map<TopicPartition, Long> first = new HashMap<>();
            Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
            for (var record : records) {
                var at = new TopicPartition(record.topic(), record.partition());
                first.putIfAbsent(at, record.offset());
                next.put(at, new OffsetAndMetadata(record.offset() + 1));
                producer.send(new ProducerRecord<>(sink, record.partition(), record.key(), record.value()));
            }
            producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
            if (count++ % 5 == 0) {
                producer.flush();
                producer.abortTransaction();
                first.forEach(consumer::seek);
            } else {
                producer.commitTransaction();
            }
        }
    }

    static Properties with(String bootstrap, Map<String, String> more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(more);
        return settings;
    }
}
