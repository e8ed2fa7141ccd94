//! The methods that the database stores have in common.

/// Gives a store its settings, its migration and the trait, which all go by the same names.
macro_rules! shared_methods {
    ($store:ident, $pool:ty, $dialect:ident, $database:ident) => {
        impl $store {
            fn assemble(pool: $pool, settings: Settings) -> Self {
                let statements = Arc::new(Statements::new(&$dialect, &settings));
                Self { pool, settings, statements }
            }

            /// Sets the prefix of the table's name. Default: `acemq_`.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidOption`](crate::Error::InvalidOption) unless it matches
            /// `[A-Za-z_][A-Za-z0-9_]{0,40}`.
            pub fn table_prefix(self, prefix: &str) -> Result<Self> {
                let settings = Settings { prefix: Prefix::parse(prefix)?, ..self.settings };
                Ok(Self::assemble(self.pool, settings))
            }

            /// Sets how long a claim holds unless it is renewed. Default: 5 min.
            #[must_use]
            pub fn lease(mut self, lease: Duration) -> Self {
                self.settings.lease = lease;
                self
            }

            /// Sets how long a handled message is remembered. Default: 24 h.
            ///
            /// It must be longer than the longest time a copy can lie in a queue.
            #[must_use]
            pub fn retention(mut self, retention: Duration) -> Self {
                self.settings.retention = retention;
                self
            }

            /// Creates or updates the table; does nothing where that has happened.
            ///
            /// Several processes may call it at once. The version is remembered in
            /// `{prefix}schema`; an application's own migration table is not touched. Dropping
            /// the future does not stop it.
            ///
            /// # Errors
            ///
            /// [`Error::Store`](crate::Error::Store) if the database fails or its user may not
            /// create tables.
            pub async fn migrate(&self) -> Result<()> {
                $database::migrate(&self.pool, &self.settings.prefix, &MIGRATION).await
            }

            /// Returns what [`migrate`](Self::migrate) does as one script, for teams that run
            /// their own migrations.
            #[must_use]
            pub fn migration_sql(&self) -> String {
                $database::script(&self.settings.prefix, &MIGRATION)
            }

            /// Compares the table's columns with what this version needs.
            ///
            /// # Errors
            ///
            /// - [`Error::Schema`](crate::Error::Schema), which names the table and the column,
            ///   if one is missing or of another type.
            /// - [`Error::Store`](crate::Error::Store) if the database fails.
            pub async fn check(&self) -> Result<()> {
                $database::check(&self.pool, &self.settings.table(), COLUMNS).await
            }

            /// A clone whose database clock stands still, for tests of exact times.
            #[cfg(test)]
            pub(super) fn frozen_at(self, now: &'static str) -> Self {
                let settings = Settings { now, ..self.settings };
                Self::assemble(self.pool, settings)
            }

            /// Runs a statement on one claim; returns whether it was the token's.
            async fn change(
                &self,
                sql: &Arc<str>,
                (consumer, message_id): (&str, &str),
                token: Uuid,
                live: Option<Duration>,
                action: &'static str,
            ) -> Result<bool> {
                check_key(consumer, message_id)?;
                let change = match live {
                    Some(live) => query(sql).bind(sql_millis(live)),
                    None => query(sql),
                };
                let change = change.bind(consumer).bind(message_id).bind(db_token(token));
                Ok($database::execute(&self.pool, change, action).await? > 0)
            }
        }

        impl IdempotencyStore for $store {
            fn claim_lease(&self) -> Duration {
                self.settings.lease
            }

            fn retention(&self) -> Option<Duration> {
                Some(self.settings.retention)
            }

            fn try_claim<'a>(
                &'a self,
                consumer: &'a str,
                message_id: &'a str,
            ) -> BoxFuture<'a, Result<Claim>> {
                Box::pin(self.claim_on_pool(consumer, message_id))
            }

            fn confirm<'a>(
                &'a self,
                consumer: &'a str,
                message_id: &'a str,
                token: Uuid,
            ) -> BoxFuture<'a, Result<bool>> {
                let (sql, live) = (&self.statements.confirm, Some(self.settings.retention));
                Box::pin(self.change(sql, (consumer, message_id), token, live, "confirm a message"))
            }

            fn release<'a>(
                &'a self,
                consumer: &'a str,
                message_id: &'a str,
                token: Uuid,
            ) -> BoxFuture<'a, Result<bool>> {
                let sql = &self.statements.release;
                Box::pin(self.change(sql, (consumer, message_id), token, None, "release a message"))
            }

            fn renew<'a>(
                &'a self,
                consumer: &'a str,
                message_id: &'a str,
                token: Uuid,
            ) -> BoxFuture<'a, Result<bool>> {
                let (sql, live) = (&self.statements.renew, Some(self.settings.lease));
                Box::pin(self.change(sql, (consumer, message_id), token, live, "renew a claim"))
            }

            fn forget<'a>(
                &'a self,
                consumer: &'a str,
                message_id: &'a str,
            ) -> BoxFuture<'a, Result<bool>> {
                Box::pin(async move {
                    check_key(consumer, message_id)?;
                    let change = query(&self.statements.forget).bind(consumer).bind(message_id);
                    Ok($database::execute(&self.pool, change, "forget a message").await? > 0)
                })
            }

            fn purge(&self, limit: u32) -> BoxFuture<'_, Result<u64>> {
                Box::pin(async move {
                    let change = query(&self.statements.purge)
                        .bind(sql_millis(self.settings.retention))
                        .bind(i64::from(limit));
                    $database::execute(&self.pool, change, "purge handled messages").await
                })
            }
        }
    };
}
