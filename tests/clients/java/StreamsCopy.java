// StreamsCopy BOOTSTRAP SOURCE SINK: a Kafka Streams application with exactly_once_v2, until it is killed.
// It writes "VALUE COUNT" for each record: the value, and how many records have had its key so far. The counts are
// in a store in memory, so that a restarted application has to restore them from their changelog topic.
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

public class StreamsCopy {
    public static void main(String[] args) {
        String source = args[1], sink = args[2];
        var strings = Serdes.String();
        var counts = Materialized.<String, String>as(Stores.inMemoryKeyValueStore("counts"));
        var builder = new StreamsBuilder();
        builder.stream(source, Consumed.with(strings, strings))
            .groupByKey()
            .aggregate(() -> " 0", StreamsCopy::next, counts.withKeySerde(strings).withValueSerde(strings))
            .toStream()
            .to(sink, Produced.with(strings, strings));
        Properties settings = new Properties();
        settings.putAll(Map.of(
            "bootstrap.servers", args[0], "application.id", "copy-" + sink, "state.dir", System.getProperty("state.dir"),
            "processing.guarantee", "exactly_once_v2", "commit.interval.ms", "50",
            "statestore.cache.max.bytes", "0", "consumer.session.timeout.ms", "6000",
            "consumer.auto.offset.reset", "earliest", "consumer.max.poll.records", "50"));
        var streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace();
            System.exit(1);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
    }

    static String next(String key, String value, String last) {
        return value + " " + (Integer.parseInt(last.split(" ")[1]) + 1);
    }
}
