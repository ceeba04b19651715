// Reread BOOTSTRAP: reads partition 0 of topics as often as its input says, one command a line:
//   open TOPIC   prints "beginning OFFSET", from which reads begin
//   read END     prints the next records, until one has the offset END - 1 or a higher one, then "done";
//                or "out of range OFFSET" if the broker says that
// A record is a line: offset, timestamp, key, value and headers as name=value, in hexadecimal digits, "-" for null.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Reread {
    static final Duration POLL = Duration.ofSeconds(30);
    static final PrintStream out = new PrintStream(System.out, false);

    public static void main(String[] args) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        KafkaConsumer<byte[], byte[]> consumer = null;
        TopicPartition partition = null;
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            if (words[0].equals("open")) {
                if (consumer != null) {
                    consumer.close();
                }
                partition = new TopicPartition(words[1], 0);
                consumer = new KafkaConsumer<>(settings(args[0]), new ByteArrayDeserializer(), new ByteArrayDeserializer());
                consumer.assign(List.of(partition));
                long first = consumer.beginningOffsets(List.of(partition)).get(partition);
                consumer.seek(partition, first);
                out.println("beginning " + first);
            } else {
                read(consumer, partition, Long.parseLong(words[1]));
            }
            out.flush();
        }
    }

    static void read(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long end) {
        try {
            while (consumer.position(partition) < end) {
                var records = consumer.poll(POLL);
                if (records.isEmpty()) {
                    throw new IllegalStateException("nothing at offset " + consumer.position(partition));
                }
                for (var record : records) {
                    out.println(text(record));
                }
            }
            out.println("done");
        } catch (OffsetOutOfRangeException refused) {
            out.println("out of range " + refused.offsetOutOfRangePartitions().get(partition));
        }
    }

    static String text(ConsumerRecord<byte[], byte[]> record) {
        var text = new StringBuilder();
        text.append(record.offset()).append('\t').append(record.timestamp());
        text.append('\t').append(hex(record.key())).append('\t').append(hex(record.value()));
        for (Header header : record.headers()) {
            text.append('\t').append(header.key()).append('=').append(hex(header.value()));
        }
        return text.toString();
    }

    static String hex(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }

    static Properties settings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "none");
        settings.put("enable.auto.commit", "false");
        return settings;
    }
}
