import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.triggers.CountTrigger;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Answer each event at once, `windowed` or `stateless`: work, servers, topic in, topic out, folder for checkpoints.
 *
 * Tuned for latency: buffers and the sink's records leave at once.
 */
public class OneEvent {
    private static final Duration WINDOW = Duration.ofMinutes(10);

    /** Id and event time in milliseconds. */
    static class Parse extends AbstractDeserializationSchema<Tuple2<Long, Long>> {
        private transient ObjectMapper mapper;

        Parse() {
            super(TypeInformation.of(new TypeHint<Tuple2<Long, Long>>() {}));
        }

        @Override
        public void open(InitializationContext context) {
            mapper = new ObjectMapper();
        }

        @Override
        public Tuple2<Long, Long> deserialize(byte[] record) throws java.io.IOException {
            JsonNode event = mapper.readTree(record);
            return Tuple2.of(event.get("id").longValue(), Instant.parse(event.get("at").textValue()).toEpochMilli());
        }
    }

    /** Number of events, and the largest id. */
    static class Count implements AggregateFunction<Tuple2<Long, Long>, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, Long.MIN_VALUE);
        }

        @Override
        public Tuple2<Long, Long> add(Tuple2<Long, Long> event, Tuple2<Long, Long> sum) {
            return Tuple2.of(sum.f0 + 1, Math.max(sum.f1, event.f0));
        }

        @Override
        public Tuple2<Long, Long> getResult(Tuple2<Long, Long> sum) {
            return sum;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> left, Tuple2<Long, Long> right) {
            return Tuple2.of(left.f0 + right.f0, Math.max(left.f1, right.f1));
        }
    }

    static class Format extends ProcessWindowFunction<Tuple2<Long, Long>, String, Long, TimeWindow> {
        @Override
        public void process(Long start, Context context, Iterable<Tuple2<Long, Long>> sums, Collector<String> out) {
            Instant from = Instant.ofEpochMilli(start);
            for (Tuple2<Long, Long> sum : sums) {
                out.collect("{\"window\":{\"start\":\"" + from + "\",\"end\":\"" + from.plus(WINDOW) + "\"},\"events\":"
                    + sum.f0 + ",\"id\":" + sum.f1 + "}");
            }
        }
    }

    /** How many events each ten minutes have, so far. */
    static DataStream<String> countByWindow(DataStream<Tuple2<Long, Long>> events) {
        return events
            // the window is the key, so that one task has it whole; its state ends with the window
            .keyBy(event -> TimeWindow.getWindowStartWithOffset(event.f1, 0, WINDOW.toMillis()))
            .window(TumblingEventTimeWindows.of(WINDOW))
            .trigger(CountTrigger.of(1))
            .aggregate(new Count(), new Format());
    }

    /** Each event, changed a little. */
    static DataStream<String> passOn(DataStream<Tuple2<Long, Long>> events) {
        return events.map(event -> "{\"id\":" + event.f0 + ",\"minute\":\""
            + Instant.ofEpochMilli(event.f1).truncatedTo(ChronoUnit.MINUTES) + "\"}");
    }

    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment env = LocalFlink.open(arguments[4]);
        env.setBufferTimeout(0);
        KafkaSource<Tuple2<Long, Long>> source = KafkaSource.<Tuple2<Long, Long>>builder()
            .setBootstrapServers(arguments[1])
            .setTopics(arguments[2])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new Parse())
            // the broker answers when there is a record, and else after so many milliseconds, not 500
            .setProperty("fetch.max.wait.ms", "50")
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(arguments[1])
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic(arguments[3])
                .setValueSerializationSchema(new SimpleStringSchema(StandardCharsets.UTF_8))
                .build())
            // as Spark's sink does
            .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
            // the producer's defaults send after 5 ms
            .setProperty("linger.ms", "0")
            .build();
        boolean windowed = arguments[0].equals("windowed");
        WatermarkStrategy<Tuple2<Long, Long>> watermarks = windowed
            ? WatermarkStrategy.<Tuple2<Long, Long>>forBoundedOutOfOrderness(Duration.ofMinutes(10))
                .withTimestampAssigner((event, before) -> event.f1)
            : WatermarkStrategy.noWatermarks();
        DataStream<Tuple2<Long, Long>> events = env.fromSource(source, watermarks, "events");
        (windowed ? countByWindow(events) : passOn(events)).sinkTo(sink);
        env.execute();
    }
}
