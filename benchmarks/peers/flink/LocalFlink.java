import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Flink in one JVM, set up as its documentation recommends for large state. */
class LocalFlink {
    static StreamExecutionEnvironment open(String checkpoints) {
        Configuration conf = new Configuration();
        conf.setString("state.backend.type", "rocksdb");
        conf.setString("execution.checkpointing.interval", "10 s");
        conf.setString("execution.checkpointing.incremental", "true");
        conf.setString("execution.checkpointing.dir", "file://" + checkpoints);
        // RocksDB's cache and write buffers: the local default of 128 MB is meant for tests
        conf.setString("taskmanager.memory.managed.size", "512 mb");
        conf.setString("taskmanager.memory.network.max", "128 mb");
        // no defensive copies between chained operators
        conf.setString("pipeline.object-reuse", "true");
        return StreamExecutionEnvironment.createLocalEnvironment(2, conf);
    }
}
