import java.text.BreakIterator;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import org.codelibs.opensearch.runner.OpenSearchRunner;

/**
 * Starts one node with the name and the HTTP port that `osn node` gives it.
 *
 * The runner's own main names every node "Node 1", takes no port above 9299, and moves on to the next port where the
 * one asked for is taken. Arguments are the runner's.
 */
public final class LocalNode {
    public static void main(String[] arguments) {
        if (!breaksThaiWords()) {
            System.err.println("This Java runtime was trimmed and has no Thai word breaks, without which OpenSearch can "
                    + "start but creates no index. Use a complete JDK or JRE.");
            System.exit(1);
        }
        OpenSearchRunner runner = new OpenSearchRunner();
        // Negative: use the port as it is, and fail where it is taken.
        runner.setMaxHttpPort(-1);
        runner.onBuild((number, settings) -> {
            settings.put("node.name", System.getProperty("osn.node.name"));
            settings.put("http.port", System.getProperty("osn.http.port"));
            // The runner gives the first two only; without the third no ingest pipeline works.
            settings.putList("node.roles", "cluster_manager", "data", "ingest");
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                runner.close();
            } catch (Exception failure) {
                failure.printStackTrace();
            }
        }));
        try {
            runner.build(arguments);
            if (Boolean.getBoolean("osn.node.ends")) {
                System.exit(0);
            }
            new CountDownLatch(1).await();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    /** What the Thai analyzer, one of those that every index checks, asks of the runtime. */
    private static boolean breaksThaiWords() {
        BreakIterator words = BreakIterator.getWordInstance(Locale.forLanguageTag("th"));
        words.setText("\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22");
        return words.isBoundary(4);
    }
}
