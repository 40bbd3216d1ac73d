B=/usr/lib/postgresql/15/bin
cd /tmp/hp/p45/g2d
[ -f pg/PG_VERSION ] || $B/initdb -D pg -A trust -N >initdb.log 2>&1
exec $B/postgres -D pg -p 35417 -c listen_addresses=127.0.0.1 -c unix_socket_directories=/tmp/hp/p45/g2d/run -c fsync=off -c max_connections=60 -c shared_buffers=32MB -c max_wal_senders=4 -c wal_level=logical
