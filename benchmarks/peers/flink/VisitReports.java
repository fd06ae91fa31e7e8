import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Report each visit with every event and when it ends: servers, topic in, topic out, folder for checkpoints. */
public class VisitReports {
    /** Visit and event time in milliseconds. */
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
            JsonNode visit = mapper.readTree(record);
            long time = Instant.parse(visit.get("event_time").textValue()).toEpochMilli();
            return Tuple2.of(visit.get("visit_id").longValue(), time);
        }
    }

    /** The fold of the early writer: a timer ten minutes after the watermark, or after the event before there is one. */
    static class Report extends KeyedProcessFunction<Long, Tuple2<Long, Long>, String> {
        private static final long GAP = Duration.ofMinutes(10).toMillis();
        private transient ValueState<Integer> pages;
        private transient ValueState<Long> timer;

        @Override
        public void open(OpenContext context) {
            pages = getRuntimeContext().getState(new ValueStateDescriptor<>("pages", Integer.class));
            timer = getRuntimeContext().getState(new ValueStateDescriptor<>("timer", Long.class));
        }

        @Override
        public void processElement(Tuple2<Long, Long> visit, Context context, Collector<String> out) throws Exception {
            Integer before = pages.value();
            int now = before == null ? 1 : before + 1;
            pages.update(now);
            long watermark = context.timerService().currentWatermark();
            long end = (watermark > 0 ? watermark : visit.f1) + GAP;
            Long old = timer.value();
            if (old == null || old != end) {
                if (old != null) {
                    context.timerService().deleteEventTimeTimer(old);
                }
                context.timerService().registerEventTimeTimer(end);
                timer.update(end);
            }
            out.collect(report(visit.f0, now, false));
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            out.collect(report(context.getCurrentKey(), pages.value(), true));
            pages.clear();
            timer.clear();
        }

        private static String report(long visit, int pages, boolean finished) {
            return "{\"visit_id\":" + visit + ",\"visited_pages\":" + pages + ",\"is_finished\":" + finished + "}";
        }
    }

    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment env = LocalFlink.open(arguments[3]);
        KafkaSource<Tuple2<Long, Long>> source = KafkaSource.<Tuple2<Long, Long>>builder()
            .setBootstrapServers(arguments[0])
            .setTopics(arguments[1])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new Parse())
            .setProperty("max.partition.fetch.bytes", "8388608")
            .setProperty("max.poll.records", "10000")
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(arguments[0])
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic(arguments[2])
                .setValueSerializationSchema(new SimpleStringSchema(StandardCharsets.UTF_8))
                .build())
            .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
            // the producer's defaults send after 5 ms
            .setProperty("linger.ms", "20")
            .setProperty("batch.size", "524288")
            .build();
        WatermarkStrategy<Tuple2<Long, Long>> late = WatermarkStrategy
            .<Tuple2<Long, Long>>forBoundedOutOfOrderness(Duration.ofMinutes(15))
            .withTimestampAssigner((visit, before) -> visit.f1);
        env.fromSource(source, late, "visits").keyBy(visit -> visit.f0).process(new Report()).sinkTo(sink);
        env.execute();
    }
}
