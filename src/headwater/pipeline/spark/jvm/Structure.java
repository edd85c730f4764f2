package headwater;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;

import org.apache.spark.api.python.PythonBroadcast;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionDef;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionRef;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.NondeterministicUnaryRDG;
import org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;
import scala.Option;
import scala.Product;
import scala.collection.Iterable;
import scala.collection.Iterator;

/**
 * A plan as two tables in JSON, of its nodes and of its expressions, children first: what they are and what they are made of, not how Spark shows them.
 * An expression is an object {"e": its row}. What Spark numbers differently each time is left out, but for the ids of columns and lambda variables, which the reader
 * replaces; the seeds of random numbers are left out, too. Common table expressions come before the plan that uses them. Nothing below an observation whose name begins with the given text is written: the records of a stream.
 */
public final class Structure {
    private static final Collection NUMBERED = new HashSet(Arrays.asList(new String[] {
        "exprId", "resultId", "metadata", "qualifier", "hint", "hints", "dataframeId", "profile", "randomSeed", "seedExpression",
        "pickledAnalyzeResult", "inputEncoders", "outputEncoder", "outerAttrs", "nullable"}));
    private static final String[] OPENED = new String[] {
        "scala.", "org.apache.spark.sql.catalyst.expressions.", "org.apache.spark.sql.catalyst.plans."};

    private final String records;
    private final StringBuilder plans = new StringBuilder();
    private final StringBuilder expressions = new StringBuilder();
    private final List functions = new ArrayList();
    private final Map known = new IdentityHashMap();
    private int planCount = 0;
    private int expressionCount = 0;

    private Structure(String records) {
        this.records = records;
    }

    public static Structure of(LogicalPlan plan, String records) {
        Structure made = new Structure(records);
        made.plan(plan);
        return made;
    }

    public String text() {
        return "{\"plans\":[" + plans + "],\"expressions\":[" + expressions + "]}";
    }

    /** What a Python function was sent as. */
    public byte[] command(int number) {
        return (byte[]) ((PythonFunction) functions.get(number)).command().toArray(scala.reflect.ClassTag$.MODULE$.Byte());
    }

    /** The ids of the broadcast variables of a Python function, each with the file that holds it, a line for each. */
    public String broadcasts(int number) {
        List found = ((PythonFunction) functions.get(number)).broadcastVars();
        StringBuilder lines = new StringBuilder();
        for (int n = 0; n < found.size(); n++) {
            Broadcast each = (Broadcast) found.get(n);
            lines.append(each.id()).append('\t').append(((PythonBroadcast) each.value()).path()).append('\n');
        }
        return lines.toString();
    }

    private int plan(LogicalPlan node) {
        boolean observed = node instanceof CollectMetrics;
        boolean cut = observed && ((CollectMetrics) node).name().startsWith(records);
        StringBuilder children = new StringBuilder();
        if (node instanceof WithCTE) {
            Iterator each = ((WithCTE) node).cteDefs().iterator();
            while (each.hasNext()) {
                plan((LogicalPlan) each.next());
            }
            children.append(plan(((WithCTE) node).plan()));
        } else if (!cut) {
            Iterator each = node.children().iterator();
            while (each.hasNext()) {
                children.append(children.length() == 0 ? "" : ",").append(plan((LogicalPlan) each.next()));
            }
        }
        StringBuilder out = new StringBuilder("{\"kind\":");
        quote(node.nodeName(), out);
        out.append(",\"streaming\":").append(node.isStreaming()).append(",\"output\":[");
        Iterator columns = node.output().iterator();
        boolean first = true;
        while (columns.hasNext()) {
            Attribute column = (Attribute) columns.next();
            out.append(first ? "[" : ",[").append(column.exprId().id()).append(',');
            quote(column.name(), out);
            out.append(',');
            quote(type(column.dataType()), out);
            out.append(']');
            first = false;
        }
        out.append("],\"children\":[").append(children).append("],\"args\":{");
        if (observed) {
            out.append("\"name\":");
            quote(((CollectMetrics) node).name(), out);
        } else if (node instanceof CTERelationRef) {
            out.append("\"cte\":").append(((CTERelationRef) node).cteId());
        } else if (node instanceof CTERelationDef) {
            out.append("\"cte\":").append(((CTERelationDef) node).id());
        } else if (node instanceof LocalRelation) {
            out.append("\"data\":");
            rows((LocalRelation) node, out);
        } else if (node.children().nonEmpty() && !(node instanceof WithCTE)) {
            fields((Product) node, out);
        }
        out.append("}}");
        plans.append(planCount == 0 ? "" : ",\n").append(out);
        return planCount++;
    }

    private void rows(LocalRelation node, StringBuilder out) {
        StructType kind = node.schema();
        Iterator each = node.data().iterator();
        out.append('[');
        for (int n = 0; each.hasNext(); n++) {
            out.append(n == 0 ? "" : ",");
            value(each.next(), kind, out);
        }
        out.append(']');
    }

    private int expression(Expression node) {
        Object before = known.get(node);
        if (before != null) {
            return ((Integer) before).intValue();
        }
        StringBuilder out = new StringBuilder("{\"kind\":");
        quote(node.getClass().getSimpleName(), out);
        if (node instanceof Attribute) {
            Attribute column = (Attribute) node;
            out.append(",\"ref\":").append(column.resolved() ? column.exprId().id() : -1L).append(",\"args\":{\"name\":");
            quote(column.name(), out);
        } else if (node instanceof NamedLambdaVariable) {
            out.append(",\"variable\":").append(((NamedLambdaVariable) node).exprId().id()).append(",\"args\":{\"type\":");
            quote(type(node.dataType()), out);
        } else if (node instanceof CommonExpressionRef) {
            out.append(",\"variable\":").append(-1 - ((CommonExpressionRef) node).id().id()).append(",\"args\":{\"type\":");
            quote(type(node.dataType()), out);
        } else if (node instanceof CommonExpressionDef) {
            CommonExpressionDef common = (CommonExpressionDef) node;
            int child = expression(common.child());
            int variable = expression(new CommonExpressionRef(common.id(), common.dataType(), common.nullable()));
            out.append(",\"args\":{\"child\":{\"e\":").append(child).append("},\"variable\":{\"e\":").append(variable).append('}');
        } else if (node instanceof Literal) {
            Literal literal = (Literal) node;
            out.append(",\"args\":{\"type\":");
            quote(type(literal.dataType()), out);
            out.append(",\"value\":");
            value(literal.value(), literal.dataType(), out);
        } else if (node instanceof Alias) {
            Alias alias = (Alias) node;
            int child = expression(alias.child());
            out.append(",\"id\":").append(alias.exprId().id()).append(",\"name\":");
            quote(alias.name(), out);
            out.append(",\"args\":{\"child\":{\"e\":").append(child).append('}');
            if (alias.explicitMetadata().isDefined()) {
                out.append(",\"session\":").append(alias.metadata().contains("spark.sessionWindow"));
            }
        } else if (node instanceof RuntimeReplaceable) {
            out.append(",\"args\":{\"child\":{\"e\":").append(expression(((RuntimeReplaceable) node).replacement())).append('}');
        } else if (node instanceof Product && !(node instanceof NondeterministicUnaryRDG)) {
            out.append(",\"args\":{");
            fields((Product) node, out);
        } else {
            out.append(",\"args\":{");
        }
        out.append("}}");
        expressions.append(expressionCount == 0 ? "" : ",\n").append(out);
        known.put(node, new Integer(expressionCount));
        return expressionCount++;
    }

    private void fields(Product node, StringBuilder out) {
        boolean first = true;
        for (int n = 0; n < node.productArity(); n++) {
            String name = node.productElementName(n);
            Object field = node.productElement(n);
            if (NUMBERED.contains(name) || (node instanceof LogicalPlan && field instanceof LogicalPlan)) {
                continue;
            }
            out.append(first ? "" : ",");
            quote(name, out);
            out.append(':');
            any(field, out);
            first = false;
        }
    }

    private void any(Object each, StringBuilder out) {
        if (each == null) {
            out.append("null");
        } else if (each instanceof Expression) {
            out.append("{\"e\":").append(expression((Expression) each)).append('}');
        } else if (each instanceof LogicalPlan) {
            out.append("{\"p\":").append(plan((LogicalPlan) each)).append('}');
        } else if (each instanceof PythonFunction) {
            functions.add(each);
            out.append("{\"function\":").append(functions.size() - 1).append('}');
        } else if (each instanceof DataType) {
            out.append("{\"type\":");
            quote(type((DataType) each), out);
            out.append('}');
        } else if (each instanceof Option) {
            list(((Option) each).iterator(), out);
        } else if (each instanceof Iterable) {
            list(((Iterable) each).iterator(), out);
        } else if (each instanceof Boolean || each instanceof Integer || each instanceof Long) {
            out.append(each);
        } else if (each instanceof byte[]) {
            quote(hex((byte[]) each), out);
        } else if (each instanceof Class) {
            quote(((Class) each).getName(), out);
        } else if (each instanceof CharSequence || each instanceof Number || each instanceof Character || each instanceof Enum
                || each instanceof UTF8String || each.getClass().getName().startsWith("scala.Enumeration")) {
            quote(each.toString(), out);
        } else if (each instanceof Product && isOpened(each)) {
            out.append("{\"kind\":");
            quote(((Product) each).productPrefix(), out);
            out.append(",\"args\":{");
            fields((Product) each, out);
            out.append("}}");
        } else {
            out.append("{\"object\":");
            quote(named(each), out);
            out.append('}');
        }
    }

    private void list(Iterator each, StringBuilder out) {
        out.append('[');
        for (int n = 0; each.hasNext(); n++) {
            out.append(n == 0 ? "" : ",");
            any(each.next(), out);
        }
        out.append(']');
    }

    private static boolean isOpened(Object each) {
        for (int n = 0; n < OPENED.length; n++) {
            if (each.getClass().getName().startsWith(OPENED[n])) {
                return true;
            }
        }
        return false;
    }

    /** The class of an object; those of lambdas are numbered. */
    private static String named(Object each) {
        String name = each.getClass().getName();
        int lambda = name.indexOf("$$Lambda");
        return lambda < 0 ? name : name.substring(0, lambda);
    }

    private static String type(DataType kind) {
        if (kind instanceof StructType) {
            StructField[] fields = ((StructType) kind).fields();
            StringBuilder out = new StringBuilder("struct<");
            for (int n = 0; n < fields.length; n++) {
                out.append(n == 0 ? "`" : ",`").append(fields[n].name().replace("`", "``")).append("`:").append(type(fields[n].dataType()));
            }
            return out.append('>').toString();
        }
        if (kind instanceof ArrayType) {
            return "array<" + type(((ArrayType) kind).elementType()) + ">";
        }
        if (kind instanceof MapType) {
            return "map<" + type(((MapType) kind).keyType()) + "," + type(((MapType) kind).valueType()) + ">";
        }
        return kind instanceof ObjectType ? ((ObjectType) kind).cls().getName() : kind.catalogString();
    }

    private static void value(Object each, DataType kind, StringBuilder out) {
        if (each == null) {
            out.append("null");
        } else if (kind instanceof UserDefinedType) {
            value(each, ((UserDefinedType) kind).sqlType(), out);
        } else if (each instanceof UTF8String && !((UTF8String) each).isValid()) {
            quote("x" + hex(((UTF8String) each).getBytes()), out.append('['));
            out.append(']');
        } else if (each instanceof byte[]) {
            quote(hex((byte[]) each), out);
        } else if (each instanceof VariantVal) {
            quote(hex(((VariantVal) each).getValue()) + " " + hex(((VariantVal) each).getMetadata()), out);
        } else if (each instanceof ArrayData) {
            values((ArrayData) each, ((ArrayType) kind).elementType(), out);
        } else if (each instanceof MapData) {
            values(((MapData) each).keyArray(), ((MapType) kind).keyType(), out.append('['));
            values(((MapData) each).valueArray(), ((MapType) kind).valueType(), out.append(','));
            out.append(']');
        } else if (each instanceof InternalRow) {
            StructField[] fields = ((StructType) kind).fields();
            out.append('[');
            for (int n = 0; n < fields.length; n++) {
                out.append(n == 0 ? "" : ",");
                value(((InternalRow) each).get(n, fields[n].dataType()), fields[n].dataType(), out);
            }
            out.append(']');
        } else {
            quote(kind instanceof ObjectType ? named(each) : each.toString(), out);
        }
    }

    private static void values(ArrayData array, DataType kind, StringBuilder out) {
        out.append('[');
        for (int n = 0; n < array.numElements(); n++) {
            out.append(n == 0 ? "" : ",");
            value(array.get(n, kind), kind, out);
        }
        out.append(']');
    }

    private static String hex(byte[] bytes) {
        StringBuilder out = new StringBuilder();
        for (int n = 0; n < bytes.length; n++) {
            out.append(Character.forDigit((bytes[n] >> 4) & 15, 16)).append(Character.forDigit(bytes[n] & 15, 16));
        }
        return out.toString();
    }

    private static void quote(String text, StringBuilder out) {
        out.append('"');
        for (int n = 0; n < text.length(); n++) {
            char each = text.charAt(n);
            if (each == '"' || each == '\\') {
                out.append('\\').append(each);
            } else if (each < ' ' || Character.isSurrogate(each)) {
                String code = Integer.toHexString(each);
                out.append("\\u").append("0000".substring(code.length())).append(code);
            } else {
                out.append(each);
            }
        }
        out.append('"');
    }
}
