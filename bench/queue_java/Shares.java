import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A share group by Kafka's own clients, with acks=all, in which each worker is a consumer. */
final class Shares implements Queues.Client {
    static final Duration POLL = Duration.ofMillis(100);
    private final String bootstrap;
    private final KafkaProducer<byte[], byte[]> producer;
    private volatile Exception failure;

    Shares(String bootstrap) {
        this.bootstrap = bootstrap;
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", 1);
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    public void publish(String queue, byte[] body, byte[] key) throws Exception {
        producer.send(new ProducerRecord<>(queue, key, body), (metadata, error) -> {
            if (error != null) {
                failure = error;
            }
        });
        if (failure != null) {
            throw failure;
        }
    }

    public void settle() throws Exception {
        producer.flush();
        if (failure != null) {
            throw failure;
        }
    }

    public void work(String queue, String group, int workers, Queues.Handler handler) throws Exception {
        Thread[] threads = new Thread[workers];
        for (int number = 0; number < workers; number++) {
            int worker = number;
            threads[number] = new Thread(() -> consume(queue, group, handler, worker));
            threads[number].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void consume(String queue, String group, Queues.Handler handler, int worker) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group));
        settings.put("client.id", "bench");
        settings.put("enable.metrics.push", false);
        try (var consumer = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(queue));
            while (!handler.isOver()) {
                for (var record : consumer.poll(POLL)) {
                    handler.handle(worker, record.value());
                }
            }
            consumer.commitSync();
        }
    }
}
