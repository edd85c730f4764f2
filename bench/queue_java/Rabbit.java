import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.MessageProperties;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;

/** RabbitMQ: a durable queue, persistent messages, publisher confirms, manual acknowledgements, prefetch 250. */
final class Rabbit implements Queues.Client {
    static final int PREFETCH = 250;
    static final int UNCONFIRMED_MAX = 2000;
    private final Connection connection;
    private final Channel publisher;
    private final Semaphore room = new Semaphore(UNCONFIRMED_MAX);
    private long confirmed = 0;

    Rabbit(String port) throws Exception {
        var factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(port));
        connection = factory.newConnection(Executors.newFixedThreadPool(Queues.WORKERS));
        publisher = connection.createChannel();
        publisher.confirmSelect();
        publisher.addConfirmListener(this::confirm, (tag, multiple) -> System.exit(1));
    }

    private synchronized void confirm(long tag, boolean multiple) {
        if (multiple) {
            room.release((int) (tag - confirmed));
            confirmed = tag;
        } else {
            room.release();
            confirmed = Math.max(confirmed, tag);
        }
    }

    public void declare(String queue) throws Exception {
        publisher.queueDeclare(queue, true, false, false, null);
    }

    public void delete(String queue) throws Exception {
        publisher.queueDelete(queue);
    }

    public void publish(String queue, byte[] body, byte[] key) throws Exception {
        room.acquire();
        publisher.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, body);
    }

    public void settle() throws Exception {
        publisher.waitForConfirms();
    }

    public void work(String queue, String group, int workers, Queues.Handler handler) throws Exception {
        List<Channel> channels = new ArrayList<>();
        var over = new CountDownLatch(1);
        for (int number = 0; number < workers; number++) {
            int worker = number;
            Channel channel = connection.createChannel();
            channels.add(channel);
            channel.basicQos(PREFETCH);
            channel.basicConsume(queue, false, new DefaultConsumer(channel) {
                @Override
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                        throws IOException {
                    handler.handle(worker, body);
                    channel.basicAck(envelope.getDeliveryTag(), false);
                    if (handler.isOver()) {
                        over.countDown();
                    }
                }
            });
        }
        over.await();
        for (Channel channel : channels) {
            channel.close();
        }
    }
}
