"""The launch of a session, until it joins the other launch modules."""
