import java.util.List;
import java.util.Map;
import org.opensearch.analysis.common.CommonAnalysisPlugin;
import org.opensearch.common.logging.LogConfigurator;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;
import org.opensearch.transport.Netty4Plugin;

/** One OpenSearch node without its distribution: plugins come from the class path, settings from HOME/config/opensearch.yml. */
public final class SearchNode extends Node {
    private SearchNode(Environment environment, List<Class<? extends Plugin>> plugins) {
        super(environment, plugins, true);
    }

    public static void main(String[] arguments) throws Exception {
        LogConfigurator.registerErrorListener();
        Settings settings = Settings.builder().put("path.home", arguments[0]).put("logger.level", "WARN").build();
        LogConfigurator.configureWithoutConfig(settings);
        Environment environment = InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "test");
        LogConfigurator.setNodeName(Node.NODE_NAME_SETTING.get(environment.settings()));
        new SearchNode(environment, List.of(Netty4Plugin.class, CommonAnalysisPlugin.class)).start();
        Thread.currentThread().join();
    }
}
