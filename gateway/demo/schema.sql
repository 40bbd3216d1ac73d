CREATE TABLE users (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  email TEXT NOT NULL UNIQUE,
  active BOOLEAN NOT NULL,
  created_at TIMESTAMP NOT NULL
);
CREATE TABLE products (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  price DOUBLE PRECISION NOT NULL
);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY,
  user_id INTEGER NOT NULL REFERENCES users (id),
  product_id INTEGER NOT NULL REFERENCES products (id),
  quantity INTEGER NOT NULL,
  ordered_at TIMESTAMP NOT NULL
);
CREATE INDEX orders_user ON orders (user_id);
CREATE INDEX orders_product ON orders (product_id);
CREATE VIEW sales AS
  SELECT p.name AS product, sum(o.quantity) AS sold, round(sum(o.quantity * p.price), 2) AS revenue
  FROM orders o JOIN products p ON p.id = o.product_id
  GROUP BY p.id;

CREATE TEMP TABLE first (i INTEGER PRIMARY KEY, name TEXT);
INSERT INTO first VALUES (0, 'Ada'), (1, 'Bela'), (2, 'Chloe'), (3, 'Dmitri'), (4, 'Edda'), (5, 'Farid'), (6, 'Grace'), (7, 'Hiro'),
  (8, 'Ines'), (9, 'Jonas'), (10, 'Keiko'), (11, 'Luis'), (12, 'Mina'), (13, 'Nadia'), (14, 'Omar'), (15, 'Priya'), (16, 'Quinn'),
  (17, 'Rosa'), (18, 'Sven'), (19, 'Tara');
CREATE TEMP TABLE last (i INTEGER PRIMARY KEY, name TEXT);
INSERT INTO last VALUES (0, 'Brook'), (1, 'Weir'), (2, 'Rivers'), (3, 'Lake'), (4, 'Marsh'), (5, 'Spring'), (6, 'Ford'), (7, 'Mill'),
  (8, 'Pond'), (9, 'Sluice');
WITH n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 499)
INSERT INTO users (id, name, email, active, created_at)
  SELECT n.i + 1, first.name || ' ' || last.name, lower(first.name) || '.' || lower(last.name) || (n.i + 1) || '@example.com',
    n.i % 7 <> 0, datetime('2025-01-01', '+' || (n.i * 17 % 365) || ' days', '+' || (n.i * 37 % 1440) || ' minutes')
  FROM n CROSS JOIN first ON first.i = n.i % 20 CROSS JOIN last ON last.i = n.i / 20 % 10;
DROP TABLE temp.first;
DROP TABLE temp.last;

INSERT INTO products (name, price) VALUES
  ('Watering can', 18.5), ('Rain barrel', 89.0), ('Garden hose', 34.9), ('Pond pump', 129.0), ('Water lily', 12.25), ('Reed bundle', 7.8),
  ('Stepping stone', 9.9), ('Sluice gate', 340.0), ('Bucket', 6.5), ('Rubber boots', 42.0), ('Dip net', 15.75), ('Water wheel', 480.0);

WITH n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999)
INSERT INTO orders (user_id, product_id, quantity, ordered_at)
  SELECT i * 7919 % 500 + 1, i * 104729 % 12 + 1, i % 5 + 1, datetime('2026-01-01', '+' || (i * 31 % 300) || ' days', '+' || (i * 53 % 1440) || ' minutes')
  FROM n;
