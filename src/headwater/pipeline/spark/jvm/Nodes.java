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

import scala.jdk.javaapi.CollectionConverters;

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

    /** A plan without its nodes of these names, each of which has one child. */
    public static TreeNode without(TreeNode node, String names) {
        return without(node, Arrays.asList(names.split(" ")));
    }

    private static TreeNode without(TreeNode node, Collection names) {
        if (names.contains(node.nodeName())) {
            return without((TreeNode) node.children().head(), names);
        }
        List children = new ArrayList();
        boolean changed = false;
        scala.collection.Iterator before = node.children().iterator();
        while (before.hasNext()) {
            TreeNode child = (TreeNode) before.next();
            TreeNode now = without(child, names);
            changed |= now != child;
            children.add(now);
        }
        return changed ? node.withNewChildren(CollectionConverters.asScala(children).toSeq()) : node;
    }

    /** The first part with one of these names in an expression of some steps, and that expression; empty if there is none. */
    public static List part(TreeNode plan, String names, String steps) {
        List nodes = steps.isEmpty() ? Arrays.asList(new Object[] {plan}) : find(plan, steps);
        for (int n = 0; n < nodes.size(); n++) {
            scala.collection.Iterator expressions = ((QueryPlan) nodes.get(n)).expressions().iterator();
            while (expressions.hasNext()) {
                TreeNode expression = (TreeNode) expressions.next();
                List parts = find(expression, names);
                if (!parts.isEmpty()) {
                    return Arrays.asList(new Object[] {parts.get(0), expression});
                }
            }
        }
        return new ArrayList();
    }

    /** The column of this name that a plan ends with, or null. */
    public static NamedExpression column(QueryPlan plan, String name) {
        scala.collection.Iterator columns = plan.output().iterator();
        while (columns.hasNext()) {
            NamedExpression column = (NamedExpression) columns.next();
            if (column.name().equals(name)) {
                return column;
            }
        }
        return null;
    }

    /** Whether a plan of this name reads a column with one of these names. */
    public static boolean reads(QueryPlan plan, String kind, String names) {
        if (!plan.nodeName().equals(kind)) {
            return false;
        }
        Collection wanted = Arrays.asList(names.split(" "));
        scala.collection.Iterator children = plan.children().iterator();
        while (children.hasNext()) {
            scala.collection.Iterator columns = ((QueryPlan) children.next()).output().iterator();
            while (columns.hasNext()) {
                if (wanted.contains(((NamedExpression) columns.next()).name())) {
                    return true;
                }
            }
        }
        return false;
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
        if (column(plan, name) != null) {
            return true;
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
