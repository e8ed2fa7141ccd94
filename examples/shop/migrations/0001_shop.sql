-- The shop's own tables. Those of acemq, `acemq_…`, are made by its stores.

CREATE TABLE IF NOT EXISTS stock (
    sku    text PRIMARY KEY,
    cents  bigint NOT NULL CHECK (cents > 0),
    pieces bigint NOT NULL CHECK (pieces >= 0)
);

CREATE TABLE IF NOT EXISTS orders (
    id       uuid PRIMARY KEY,
    customer text NOT NULL,
    sku      text NOT NULL REFERENCES stock,
    quantity bigint NOT NULL CHECK (quantity > 0),
    cents    bigint NOT NULL,
    status   text NOT NULL DEFAULT 'placed' CHECK (status IN ('placed', 'paid', 'cancelled')),
    reason   text
);

CREATE TABLE IF NOT EXISTS reservations (
    order_id uuid PRIMARY KEY REFERENCES orders,
    sku      text NOT NULL REFERENCES stock,
    quantity bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS payments (
    order_id uuid PRIMARY KEY REFERENCES orders,
    cents    bigint NOT NULL,
    state    text NOT NULL CHECK (state IN ('charged', 'refunded'))
);

CREATE TABLE IF NOT EXISTS ledger (
    customer text NOT NULL,
    number   bigint NOT NULL,
    order_id uuid NOT NULL UNIQUE REFERENCES orders,
    cents    bigint NOT NULL,
    balance  bigint NOT NULL,
    PRIMARY KEY (customer, number)
);

CREATE TABLE IF NOT EXISTS mails (
    order_id uuid NOT NULL REFERENCES orders,
    kind     text NOT NULL CHECK (kind IN ('cancelled', 'review')),
    customer text NOT NULL,
    PRIMARY KEY (order_id, kind)
);

INSERT INTO stock (sku, cents, pieces) VALUES ('lamp', 1995, 100), ('desk', 24900, 20), ('sofa', 89900, 5)
ON CONFLICT DO NOTHING;
