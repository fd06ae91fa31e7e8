import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/** Count events per ten minutes with Flink SQL: servers, topic in, topic out, folder for checkpoints. */
public class WindowedCount {
    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment env = LocalFlink.open(arguments[3]);
        StreamTableEnvironment table = StreamTableEnvironment.create(env);
        table.getConfig().set("table.local-time-zone", "UTC");
        String kafka = "'connector'='kafka', 'properties.bootstrap.servers'='" + arguments[0] + "'";
        table.executeSql(
            "CREATE TABLE visits (event_id STRING, visit_id INT, event_time TIMESTAMP_LTZ(3), page STRING, "
                + "WATERMARK FOR event_time AS event_time - INTERVAL '20' MINUTE) WITH (" + kafka
                + ", 'topic'='" + arguments[1] + "', 'format'='json', 'json.timestamp-format.standard'='ISO-8601'"
                + ", 'scan.startup.mode'='earliest-offset', 'scan.bounded.mode'='latest-offset'"
                // larger fetches than the default 1 MB a partition
                + ", 'properties.max.partition.fetch.bytes'='8388608', 'properties.max.poll.records'='10000')");
        table.executeSql(
            "CREATE TABLE counts (`start` TIMESTAMP_LTZ(3), `count` BIGINT) WITH (" + kafka
                + ", 'topic'='" + arguments[2] + "', 'format'='json', 'json.timestamp-format.standard'='ISO-8601')");
        // the table function, which counts before the shuffle as well, instead of GROUP BY TUMBLE(...)
        table.executeSql(
            "INSERT INTO counts SELECT window_start, COUNT(*) FROM TABLE(TUMBLE(TABLE visits, "
                + "DESCRIPTOR(event_time), INTERVAL '10' MINUTE)) GROUP BY window_start, window_end").await();
    }
}
