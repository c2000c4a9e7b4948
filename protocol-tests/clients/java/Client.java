import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;

/** Produces and consumes in a group through a restart of the broker; see ../README.md. */
public class Client {
    static final long DEADLINE = System.nanoTime() + Duration.ofSeconds(150).toNanos();
    static String bootstrap, topic, group;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        Path restarted = Path.of(args[1]);
        topic = "java-" + UUID.randomUUID();
        group = topic + "-group";
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, 6, (short) 1))).all().get();
        }
        Set<String> seen = Collections.synchronizedSet(new HashSet<>());
        AtomicInteger duplicates = new AtomicInteger();
        AtomicBoolean enough = new AtomicBoolean();
        Thread reader = new Thread(() -> read(seen, duplicates, enough));
        reader.start();
        int produced = produce(restarted);
        while (seen.size() < produced) pause("the consumer saw only " + seen.size() + " of " + produced);
        enough.set(true);
        reader.join();
        if (duplicates.get() > 0) throw new IllegalStateException(duplicates + " records are in the log twice");
        resume();
        System.out.println(produced + " records: ok");
    }

    static int produce(Path restarted) throws Exception {
        AtomicInteger acknowledged = new AtomicInteger();
        AtomicReference<Exception> failed = new AtomicReference<>();
        int next = 0, left = 500;
        boolean halfway = false;
        try (KafkaProducer<String, String> producer = producer()) {
            while (left > 0) {
                producer.send(new ProducerRecord<>(topic, "key" + next % 50, "value" + next), (metadata, error) -> {
                    if (error != null) failed.set(error);
                    acknowledged.incrementAndGet();
                });
                next++;
                if (failed.get() != null) throw failed.get();
                if (!halfway && acknowledged.get() >= 500) {
                    halfway = true;
                    System.out.println("halfway");
                }
                if (Files.exists(restarted)) left--;
                pause("the restart does not come");
            }
            producer.flush();
        }
        if (failed.get() != null) throw failed.get();
        return next;
    }

    static KafkaProducer<String, String> producer() {
        return new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap, "delivery.timeout.ms", "120000"),
            new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer() {
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
            Map.of("bootstrap.servers", bootstrap, "group.id", group, "auto.offset.reset", "earliest",
                "enable.auto.commit", "false"),
            new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    static void read(Set<String> seen, AtomicInteger duplicates, AtomicBoolean enough) {
        Set<String> places = new HashSet<>();
        try (KafkaConsumer<String, String> consumer = consumer()) {
            while (!enough.get()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    boolean again = !places.add(record.partition() + "/" + record.offset());
                    if (!seen.add(record.value()) && !again) duplicates.incrementAndGet();
                }
            }
            consumer.commitSync();
        }
    }

    /** A new consumer of the group sees what came after the last one's commit, and nothing else. */
    static void resume() throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < 10; i++) producer.send(new ProducerRecord<>(topic, "tail" + i)).get();
        }
        Set<String> tail = new HashSet<>();
        try (KafkaConsumer<String, String> consumer = consumer()) {
            while (tail.size() < 10) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    if (!record.value().startsWith("tail")) throw new IllegalStateException("saw " + record.value() + " again");
                    tail.add(record.value());
                }
                pause("the second consumer saw only " + tail);
            }
        }
    }

    static void pause(String what) throws Exception {
        if (System.nanoTime() > DEADLINE) throw new IllegalStateException(what);
        Thread.sleep(1);
    }
}
