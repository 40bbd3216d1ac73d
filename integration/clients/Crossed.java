import java.io.StringReader;
import java.io.StringWriter;
import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;

/** Clients that check that each answer is their own; see crossed.py. Arguments: the URL (jdbc:postgresql://…), clients, operations of each, "calm" or "killed". */
class Crossed {
    static final int PATIENCE = 60; // seconds
    static final String[] NAMES = {"ask", "ask", "simply", "transaction", "fail", "failInTransaction", "cancel", "copy", "batch", "disconnect"};
    static final AtomicInteger done = new AtomicInteger(), lost = new AtomicInteger();
    static final ScheduledExecutorService later = Executors.newScheduledThreadPool(4);

    static class CrossedException extends Exception {
        CrossedException(String what) { super(what); }
    }

    interface Work { void run() throws Exception; }

    static void check(Object got, Object want) throws CrossedException {
        if (!got.equals(want)) throw new CrossedException("got " + got + ", want " + want);
    }

    static void expect(String state, Work work) throws Exception {
        try {
            work.run();
        } catch (SQLException e) {
            if (state.equals(e.getSQLState())) return;
            throw e;
        }
        throw new CrossedException("no error " + state);
    }

    static List<String> column(Connection c, String sql, String... args) throws SQLException {
        try (PreparedStatement s = c.prepareStatement(sql)) {
            for (int i = 0; i < args.length; i++) s.setString(i + 1, args[i]);
            List<String> all = new ArrayList<>();
            try (ResultSet r = s.executeQuery()) {
                while (r.next()) all.add(r.getString(1));
            }
            return all;
        }
    }

    static void update(Connection c, String sql, String... args) throws SQLException {
        try (PreparedStatement s = c.prepareStatement(sql)) {
            for (int i = 0; i < args.length; i++) s.setString(i + 1, args[i]);
            s.execute();
        }
    }

    static void ask(Connection c, String tag) throws Exception {
        check(column(c, "select ? || '/' || g from generate_series(1, 3) g", tag), List.of(tag + "/1", tag + "/2", tag + "/3"));
    }

    static void work(Connection c, String name, String tag) throws Exception {
        switch (name) {
            case "ask" -> ask(c, tag);
            case "simply" -> {
                try (Statement s = c.createStatement(); ResultSet r = s.executeQuery("select '" + tag + "'")) {
                    r.next();
                    check(r.getString(1), tag);
                }
            }
            case "transaction" -> {
                c.setAutoCommit(false);
                update(c, "insert into crossed values (?, 1)", tag);
                check(column(c, "select tag from crossed where tag = ?", tag), List.of(tag));
                c.commit();
                c.setAutoCommit(true);
            }
            case "fail" -> {
                expect("22012", () -> column(c, "select ? || (1 / 0)", tag));
                ask(c, tag);
            }
            case "failInTransaction" -> {
                c.setAutoCommit(false);
                update(c, "insert into crossed values (?, 2)", tag);
                expect("22012", () -> column(c, "select 1 / 0"));
                c.rollback();
                c.setAutoCommit(true);
                check(column(c, "select count(*) from crossed where tag = ?", tag), List.of("0"));
            }
            case "cancel" -> cancel(c, tag);
            case "copy" -> copy(c, tag);
            case "batch" -> {
                try (PreparedStatement s = c.prepareStatement("insert into crossed values (?, ?)")) {
                    for (int n = 0; n < 5; n++) {
                        s.setString(1, tag);
                        s.setInt(2, n);
                        s.addBatch();
                    }
                    s.executeBatch();
                }
                check(column(c, "select sum(n) from crossed where tag = ?", tag), List.of("10"));
            }
            default -> throw new IllegalArgumentException(name);
        }
    }

    /** A request may come before the statement: it is repeated, which Statement.cancel does not do. None goes out when the statement is over. */
    static void cancel(Connection c, String tag) throws Exception {
        boolean[] over = {false};
        Future<?> again = later.scheduleWithFixedDelay(() -> {
            synchronized (over) {
                try {
                    if (!over[0]) c.unwrap(PGConnection.class).cancelQuery();
                } catch (SQLException e) {
                    // the connection is lost: the statement tells
                }
            }
        }, 20, 20, TimeUnit.MILLISECONDS);
        try (Statement s = c.createStatement()) {
            expect("57014", () -> s.execute("select pg_sleep(20)"));
        } finally {
            synchronized (over) {
                over[0] = true;
            }
            again.cancel(false);
        }
        ask(c, tag);
    }

    static void copy(Connection c, String tag) throws Exception {
        CopyManager copies = c.unwrap(PGConnection.class).getCopyAPI();
        StringBuilder want = new StringBuilder();
        for (int n = 0; n < 50; n++) want.append(tag).append('\t').append(n).append('\n');
        copies.copyIn("copy crossed from stdin", new StringReader(want.toString()));
        StringWriter got = new StringWriter();
        copies.copyOut("copy (select tag, n from crossed where tag = '" + tag + "' order by n) to stdout", got);
        check(got.toString(), want.toString());
    }

    static void client(String url, int number, int operations, boolean calm) {
        Random random = new Random(number);
        Connection c = null;
        for (int n = 0; n < operations; n++) {
            String name = NAMES[random.nextInt(NAMES.length)], tag = number + "." + n + "." + name;
            try {
                if (c == null) c = DriverManager.getConnection(url);
                c.setNetworkTimeout(later, PATIENCE * 1000);
                if (name.equals("disconnect")) {
                    c.abort(Runnable::run);
                    c = null;
                } else {
                    work(c, name, tag);
                }
            } catch (CrossedException e) {
                System.out.println("crossed " + tag + " " + e.getMessage());
            } catch (Exception e) {
                lost.incrementAndGet();
                if (String.valueOf(e.getCause()).contains("Timeout")) System.out.println("stuck " + tag);
                else if (calm) System.out.println("wrong " + tag + " " + e);
                try {
                    if (c != null) c.abort(Runnable::run);
                } catch (SQLException ignored) {
                    // it is gone already
                }
                c = null;
            }
            done.incrementAndGet();
        }
    }

    public static void main(String[] args) throws Exception {
        int clients = Integer.parseInt(args[1]), operations = Integer.parseInt(args[2]);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            int number = i;
            threads.add(new Thread(() -> client(args[0], number, operations, args[3].equals("calm"))));
        }
        for (Thread t : threads) t.start();
        for (Thread t : threads) t.join();
        System.out.println("done " + done + " " + lost);
        System.exit(0);
    }
}
