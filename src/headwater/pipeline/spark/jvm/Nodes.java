package headwater;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;

import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter;

/** Looks through Spark's plans: from Python every step would be a call of its own, and to write a plan as text takes longer than to make it. */
public final class Nodes {
    private Nodes() {
    }

    /** Those of a plan that have one of these names, from the top down. */
    public static List find(TreeNode node, String names) {
        List found = new ArrayList();
        collect(node, Arrays.asList(names.split(" ")), found);
        return found;
    }

    /** The names of what is observed in it, from the top down, a line for each. */
    public static String observations(TreeNode node) {
        List found = find(node, "CollectMetrics");
        StringBuilder names = new StringBuilder();
        for (int n = 0; n < found.size(); n++) {
            names.append(((CollectMetrics) found.get(n)).name()).append('\n');
        }
        return names.toString();
    }

    /**
     * Forgets what the last run of a plan has reported: its metrics, and which files have the state that it has written. Spark expects one run,
     * and of several reports of a partition it takes the first.
     */
    public static void forgetRun(SparkPlan plan) {
        plan.resetMetrics();
        forgetState(plan);
    }

    private static void forgetState(TreeNode node) {
        if (node instanceof StateStoreWriter) {
            ((StateStoreWriter) node).checkpointInfoAccumulator().reset();
        }
        scala.collection.Iterator children = node.children().iterator();
        while (children.hasNext()) {
            forgetState((TreeNode) children.next());
        }
    }

    private static void collect(TreeNode node, Collection names, List found) {
        if (names.contains(node.nodeName())) {
            found.add(node);
        }
        scala.collection.Iterator children = node.children().iterator();
        while (children.hasNext()) {
            collect((TreeNode) children.next(), names, found);
        }
    }

    /** Whether any of them has a column of this name. */
    public static boolean mentions(QueryPlan plan, String name) {
        scala.collection.Iterator columns = plan.output().iterator();
        while (columns.hasNext()) {
            if (((NamedExpression) columns.next()).name().equals(name)) {
                return true;
            }
        }
        scala.collection.Iterator children = plan.children().iterator();
        while (children.hasNext()) {
            if (mentions((QueryPlan) children.next(), name)) {
                return true;
            }
        }
        return false;
    }
}
