// SecureRoundTrip PROPERTIES TOPIC GROUP VALUE: produces a record and consumes it in a group, with the Java client.
// Prints "ok", or the class of the first error. Without VALUE it only consumes.
import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class SecureRoundTrip {
    static final Duration LIMIT = Duration.ofSeconds(30);

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        try (var file = new FileReader(args[0])) {
            settings.load(file);
        }
        try {
            if (!args[3].isEmpty()) produce(settings, args[1], args[3]);
            System.out.println(consume(settings, args[1], args[2], args[3]) ? "ok" : "nothing");
        } catch (ExecutionException failure) {
            System.out.println(failure.getCause().getClass().getSimpleName());
        } catch (KafkaException failure) {
            System.out.println(failure.getClass().getSimpleName());
        }
    }

    static void produce(Properties settings, String topic, String value) throws Exception {
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, value)).get();
        }
    }

    static boolean consume(Properties settings, String topic, String group, String value) {
        Properties more = new Properties();
        more.putAll(settings);
        more.put("group.id", group);
        more.put("auto.offset.reset", "earliest");
        long deadline = System.nanoTime() + LIMIT.toNanos();
        try (var consumer = new KafkaConsumer<>(more, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (System.nanoTime() < deadline) {
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    if (record.value().equals(value)) return true;
                }
            }
        }
        return false;
    }
}
