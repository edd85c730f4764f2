"""What tests share: servers, clients, applications and readers of documents."""
