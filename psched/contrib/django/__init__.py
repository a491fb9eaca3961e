"""psched as a Django app: a task backend, commands of manage.py, a migration, system checks and admin pages."""
