import java.sql.*;

/** Runs commands of the console by JDBC, by both protocols. Arguments: the URL (jdbc:postgresql://…/pgbouncer?…). */
class Console {
    public static void main(String[] args) throws Exception {
        for (String mode : new String[] {"simple", "extended"}) {
            try (Connection c = DriverManager.getConnection(args[0] + "&preferQueryMode=" + mode); Statement s = c.createStatement()) {
                check(c.isValid(10), mode + ": isValid");
                try (ResultSet r = s.executeQuery("SHOW POOLS")) {
                    check(r.next() && r.getString("database").equals("shop") && r.getInt("cl_waiting") == 0, mode + ": SHOW POOLS");
                }
                try (PreparedStatement p = c.prepareStatement("SHOW STATS")) {
                    for (int i = 0; i < 8; i++) { // the driver prepares a statement for the server after some uses
                        try (ResultSet r = p.executeQuery()) {
                            check(r.next() && r.getLong("total_query_count") >= 0, mode + ": SHOW STATS");
                        }
                    }
                }
                check(!s.execute("PAUSE shop"), mode + ": PAUSE");
                s.execute("RESUME shop");
                try {
                    s.execute("SHOW NONSENSE");
                    throw new AssertionError("SHOW NONSENSE succeeds");
                } catch (SQLException e) {
                    check(e.getSQLState().equals("42601"), mode + ": " + e);
                }
                try (ResultSet r = s.executeQuery("SHOW VERSION")) {
                    check(r.next() && r.getString(1).startsWith("PgBouncer 1.25"), mode + ": SHOW VERSION");
                }
            }
        }
        System.out.println("ok");
    }

    static void check(boolean ok, String what) {
        if (!ok) throw new AssertionError(what);
    }
}
