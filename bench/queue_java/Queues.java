import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * The clients of one queue server: publishes, and handles with sixteen workers whose handler is empty.
 *
 * Commands come line by line on standard input, each answer is a line of JSON:
 *   declare QUEUE, delete QUEUE        where the client does that
 *   prime QUEUE                        publishes a message that is not counted
 *   fill QUEUE MESSAGES KEYS RATE      publishes; KEYS 0: without a key; RATE 0: as fast as it goes
 *   drain QUEUE GROUP MESSAGES         handles and acknowledges so many
 *   flow QUEUE GROUP MESSAGES RATE     both at once
 *   slow QUEUE GROUP PAUSE_MS          from now on one slow consumer reads in a group of its own
 */
public class Queues {
    static final int WORKERS = 16;
    static final int BYTES = 1000;
    /** In place of a time: not counted, it says only that a worker gets messages. */
    static final long PRIMER = -1;
    static final long PRIMER_PAUSE_NANOS = 5_000_000;

    /** A server's publisher and workers. */
    interface Client {
        /** An empty queue. */
        default void declare(String queue) throws Exception {}

        default void delete(String queue) throws Exception {}

        /** Returns when the message is taken over; blocks while too many wait for their confirmation. */
        void publish(String queue, byte[] body, byte[] key) throws Exception;

        /** Waits until everything is confirmed. */
        void settle() throws Exception;

        /** Workers that call the handler, and end when it says so. */
        void work(String queue, String group, int workers, Handler handler) throws Exception;
    }

    /** What a worker calls for each message; false once there is nothing more to do. */
    interface Handler {
        void handle(int worker, byte[] body);

        boolean isOver();
    }

    static final class Counting implements Handler {
        final AtomicLong handled = new AtomicLong();
        final CountDownLatch done = new CountDownLatch(1);
        final long wanted;
        final long[] latencies;
        final boolean[] primed = new boolean[WORKERS];
        final CountDownLatch ready = new CountDownLatch(WORKERS);
        volatile long first;
        volatile long last;

        Counting(long wanted) {
            this.wanted = wanted;
            latencies = new long[(int) wanted];
        }

        public void handle(int worker, byte[] body) {
            long now = System.nanoTime();
            long published = ByteBuffer.wrap(body).getLong();
            if (published == PRIMER) {
                if (!primed[worker]) {
                    primed[worker] = true;
                    ready.countDown();
                }
                return;
            }
            if (first == 0) {
                first = now;
            }
            long number = handled.getAndIncrement();
            if (number < wanted) {
                latencies[(int) number] = now - published;
            }
            if (number + 1 == wanted) {
                last = now;
                done.countDown();
            }
        }

        public boolean isOver() {
            return done.getCount() == 0;
        }

        /** In milliseconds, without the first tenth. */
        double percentile(double share) {
            long[] settled = Arrays.copyOfRange(latencies, latencies.length / 10, latencies.length);
            Arrays.sort(settled);
            return settled[(int) ((settled.length - 1) * share)] / 1e6;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Client client = arguments[0].equals("rabbit") ? new Rabbit(arguments[1]) : new Shares(arguments[1]);
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(switch (words[0]) {
                case "declare" -> {
                    client.declare(words[1]);
                    yield "{}";
                }
                case "delete" -> {
                    client.delete(words[1]);
                    yield "{}";
                }
                case "prime" -> prime(client, words[1]);
                case "fill" -> fill(
                        client, words[1], Long.parseLong(words[2]), Integer.parseInt(words[3]), Double.parseDouble(words[4]));
                case "drain" -> drain(client, words[1], words[2], Long.parseLong(words[3]));
                case "flow" -> flow(client, words[1], words[2], Long.parseLong(words[3]), Double.parseDouble(words[4]));
                case "slow" -> slow(client, words[1], words[2], Long.parseLong(words[3]));
                default -> throw new IllegalArgumentException(line);
            });
            System.out.flush();
        }
        System.exit(0);
    }

    static String fill(Client client, String queue, long messages, int keys, double rate) throws Exception {
        long begun = System.nanoTime();
        publish(client, queue, messages, keys, rate);
        return answer(messages, begun, System.nanoTime(), null);
    }

    /** The seconds are those between the first message and the last one. */
    static String drain(Client client, String queue, String group, long messages) throws Exception {
        Counting counting = new Counting(messages);
        client.work(queue, group, WORKERS, counting);
        return answer(messages, counting.first, counting.last, null);
    }

    static String flow(Client client, String queue, String group, long messages, double rate) throws Exception {
        Counting counting = new Counting(messages);
        Thread publisher = new Thread(() -> {
            try {
                while (counting.ready.getCount() > 0) {
                    prime(client, queue);
                    LockSupport.parkNanos(PRIMER_PAUSE_NANOS);
                }
                publish(client, queue, messages, 0, rate);
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
            }
        });
        publisher.start();
        client.work(queue, group, WORKERS, counting);
        publisher.join();
        return answer(messages, counting.first, counting.last, counting);
    }

    static String slow(Client client, String queue, String group, long pauseMs) throws Exception {
        CountDownLatch ready = new CountDownLatch(1);
        Handler handler = new Handler() {
            public void handle(int worker, byte[] body) {
                ready.countDown();
                LockSupport.parkNanos(pauseMs * 1_000_000);
            }

            public boolean isOver() {
                return false;
            }
        };
        Thread worker = new Thread(() -> {
            try {
                client.work(queue, group, 1, handler);
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
            }
        });
        worker.setDaemon(true);
        worker.start();
        prime(client, queue);
        ready.await();
        return "{}";
    }

    static String prime(Client client, String queue) throws Exception {
        client.publish(queue, ByteBuffer.allocate(BYTES).putLong(PRIMER).array(), null);
        client.settle();
        return "{}";
    }

    static void publish(Client client, String queue, long messages, int keys, double rate) throws Exception {
        long begun = System.nanoTime();
        for (long number = 0; number < messages; number++) {
            if (rate > 0) {
                long due = begun + (long) (number / rate * 1e9);
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    LockSupport.parkNanos(due - now);
                }
            }
            byte[] body = new byte[BYTES];
            ByteBuffer.wrap(body).putLong(System.nanoTime());
            byte[] key = keys == 0 ? null : Long.toString(number % keys).getBytes();
            client.publish(queue, body, key);
        }
        client.settle();
    }

    static String answer(long messages, long begun, long ended, Counting counting) {
        String latencies = counting == null ? "" : String.format(
                ", \"p50_ms\": %.3f, \"p99_ms\": %.3f", counting.percentile(0.5), counting.percentile(0.99));
        return String.format("{\"messages\": %d, \"seconds\": %.6f%s}", messages, (ended - begun) / 1e9, latencies);
    }
}
