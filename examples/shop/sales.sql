SELECT orders.id, orders.amount, coalesce(customers.region, 'eu') AS region
FROM orders LEFT JOIN customers ON orders.customer = customers.id
