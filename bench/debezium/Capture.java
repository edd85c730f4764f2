import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Debezium's embedded engine with the settings of a file, until so many events of rows have come as JSON. What they took is
 * counted from the event on at which the engine is warm; nothing is published. One process runs many, one after the other.
 */
public final class Capture implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final long warm;
    private final long rows;
    private final CountDownLatch done = new CountDownLatch(1);
    private long seen;
    private long from;
    private long cpu;
    private String answer = "";

    private Capture(long warm, long rows) {
        this.warm = warm;
        this.rows = rows;
    }

    @Override
    public void handleBatch(
            List<ChangeEvent<String, String>> events,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        for (ChangeEvent<String, String> event : events) {
            if (event.value() != null && event.value().contains("\"after\"")) {
                seen++;
            }
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
        if (from == 0 && seen >= warm) {
            from = seen;
            cpu = PROCESS.getProcessCpuTime();
        }
        if (seen >= rows && answer.isEmpty()) {
            long all = PROCESS.getProcessCpuTime();
            answer = String.format("{\"rows\":%d,\"cpu_s\":%.3f}", seen - from, (all - cpu) / 1e9);
            done.countDown();
        }
    }

    /** Runs the engine of each line of the input, which is the file of its settings, the events until it is warm, and all of them. */
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] asked = line.split(" ");
            Properties settings = new Properties();
            try (FileReader file = new FileReader(asked[0])) {
                settings.load(file);
            }
            System.out.println(new Capture(Long.parseLong(asked[1]), Long.parseLong(asked[2])).run(settings));
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String run(Properties settings) throws Exception {
        ExecutorService thread = Executors.newSingleThreadExecutor();
        try (DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(Json.class).using(settings).notifying(this)
                        .using((success, message, error) -> {
                            if (!success) {
                                System.err.println(message + " " + error);
                            }
                            done.countDown();
                        })
                        .build()) {
            thread.execute(engine);
            done.await();
        } catch (IllegalStateException ended) {
            // A snapshot's engine ends by itself.
        }
        thread.shutdown();
        thread.awaitTermination(1, TimeUnit.MINUTES);
        return answer;
    }
}
