import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A share group through Java's own clients and tools; prints what it sees, one line for each step. */
public class ShareGroups {
    static String bootstrap, topic, group;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        group = arguments[2];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            configure(admin);
            produce();
            consume();
            describe(admin);
            tools();
        }
    }

    static void configure(Admin admin) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        List<AlterConfigOp> changes = new ArrayList<>();
        for (String[] setting : new String[][] {
                {"share.auto.offset.reset", "earliest"}, {"share.record.lock.duration.ms", "15000"}}) {
            changes.add(new AlterConfigOp(new ConfigEntry(setting[0], setting[1]), AlterConfigOp.OpType.SET));
        }
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        Map<String, String> shown = new TreeMap<>();
        for (int tries = 0; tries < 50 && shown.isEmpty(); tries++) {
            for (ConfigEntry entry : admin.describeConfigs(Set.of(resource)).all().get().get(resource).entries()) {
                if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG) {
                    shown.put(entry.name(), entry.value());
                }
            }
            Thread.sleep(100);
        }
        System.out.println("settings " + shown);
        var asked = admin.listConfigResources(Set.of(ConfigResource.Type.GROUP), new ListConfigResourcesOptions());
        System.out.println("resource listed " + asked.all().get().contains(resource));
    }

    static void produce() throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "linger.ms", 1000);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 6; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, Integer.toString(i)));
            }
        }
    }

    static List<ConsumerRecord<String, String>> poll(KafkaShareConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        long limit = System.currentTimeMillis() + 60_000;
        while (records.size() < count && System.currentTimeMillis() < limit) {
            consumer.poll(Duration.ofSeconds(1)).forEach(records::add);
        }
        StringBuilder line = new StringBuilder("polled");
        for (var record : records) {
            line.append(' ').append(record.value()).append('x').append(record.deliveryCount().get());
        }
        System.out.println(line);
        return records;
    }

    static void commit(KafkaShareConsumer<String, String> consumer) {
        consumer.commitSync().values().forEach(error -> System.out.println("committed " + error));
    }

    static void consume() {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "group.id", group, "share.acknowledgement.mode", "explicit");
        AcknowledgeType[] types = {
            AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT,
            AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RENEW};
        var text = new StringDeserializer();
        try (var consumer = new KafkaShareConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(topic));
            for (var record : poll(consumer, 6)) {
                consumer.acknowledge(record, types[Integer.parseInt(record.value())]);
            }
            commit(consumer);
            System.out.println("lock " + consumer.acquisitionLockTimeoutMs().get());
            List<String> left = new ArrayList<>(List.of("1", "4", "5"));
            long limit = System.currentTimeMillis() + 60_000;
            List<String> seen = new ArrayList<>();
            while (!left.isEmpty() && System.currentTimeMillis() < limit) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    seen.add(record.value() + "x" + record.deliveryCount().get());
                    left.remove(record.value());
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                consumer.commitSync();
            }
            Collections.sort(seen);
            System.out.println("again " + seen);
        }
    }

    static void describe(Admin admin) throws Exception {
        var described = admin.describeShareGroups(List.of(group)).all().get().get(group);
        System.out.println("group " + described.groupState() + " members " + described.members().size());
        var asked = ListGroupsOptions.forShareGroups();
        for (var listed : admin.listGroups(asked).all().get()) {
            if (listed.groupId().equals(group)) {
                System.out.println("listed " + listed.type().get() + " " + listed.groupState().get());
            }
        }
        var classic = new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC));
        System.out.println("classic "
            + admin.listGroups(classic).all().get().stream().anyMatch(g -> g.groupId().equals(group)));
    }

    static void tools() throws Exception {
        run("--describe", "--group", group, "--offsets");
        run("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute");
        org.apache.kafka.tools.consumer.ConsoleShareConsumer.main(new String[] {
            "--bootstrap-server", bootstrap, "--topic", topic, "--group", group, "--max-messages", "6",
            "--timeout-ms", "60000"});
        run("--describe", "--group", group, "--offsets");
        run("--delete-offsets", "--group", group, "--topic", topic);
        run("--delete", "--group", group);
    }

    static void run(String... arguments) throws Exception {
        List<String> all = new ArrayList<>(List.of("--bootstrap-server", bootstrap));
        all.addAll(List.of(arguments));
        org.apache.kafka.tools.consumer.group.ShareGroupCommand.main(all.toArray(String[]::new));
    }
}
